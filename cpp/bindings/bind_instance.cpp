#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "columns.hpp"
#include "metropolis/instance.hpp"
#include "metropolis/workload.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;
using namespace pybind11::literals;

namespace {

template <typename T>
Column<T> optional_column(const std::optional<py::object>& given, const char* name) {
  return given ? column_of<T>(*given, name) : Column<T>(0);
}

// The enumerator that is named `value`, if `names` are those of all in order; throws if none is.
template <typename Enum>
Enum enumerator_of(const std::string& value, const char* option,
                   const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), value);
  if (found != names.end()) return static_cast<Enum>(found - names.begin());
  std::string choices = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) {
    choices += (i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  throw py::value_error(std::string(option) + " is '" + value + "', but must be " + choices);
}

InstancePoolOptions options_of(std::int32_t instances, bool prefix_reuse,
                               const std::string& preemption, std::int32_t decision_iterations,
                               const std::string& schedule, bool chunked_prefill, double watermark,
                               bool surplus) {
  return {.instances = instances,
          .prefix_reuse = prefix_reuse,
          .preemption = enumerator_of<Preemption>(preemption, "preemption",
                                                  {"recompute", "swap", "swap_all"}),
          .decision_iterations = decision_iterations,
          .schedule = enumerator_of<Schedule>(schedule, "schedule", {"mixed", "prefill_first"}),
          .chunked_prefill = chunked_prefill,
          .watermark = watermark,
          .surplus = surplus};
}

// Pairs of text and tokens.
using Segments = std::vector<std::pair<std::int64_t, std::int32_t>>;

std::vector<Segment> segments_of(const Segments& pairs) {
  std::vector<Segment> segments;
  for (const auto& [id, tokens] : pairs) segments.push_back({id, tokens});
  return segments;
}

// `profile` and `parent` are copied: other threads may change the caller's while this one runs.
py::dict simulate(Profile profile, const py::object& arrival_sim_s, const py::object& prompt_tokens,
                  const py::object& output_tokens, const std::optional<py::object>& priority,
                  const std::optional<py::object>& prefix_id,
                  const std::optional<py::object>& prefix_tokens,
                  const std::optional<py::object>& parent, std::int32_t instances,
                  bool prefix_reuse, std::int64_t concurrency, const std::string& preemption,
                  std::int32_t decision_iterations, const std::string& schedule,
                  bool chunked_prefill, double watermark, bool surplus, double until_sim_s) {
  const auto arrivals = column_of<double>(arrival_sim_s, "arrival_sim_s");
  const auto prompts = column_of<std::int32_t>(prompt_tokens, "prompt_tokens");
  const auto outputs = column_of<std::int32_t>(output_tokens, "output_tokens");
  const auto priorities = optional_column<std::int64_t>(priority, "priority");
  const auto prefixes = optional_column<std::int64_t>(prefix_id, "prefix_id");
  const auto shared = optional_column<std::int32_t>(prefix_tokens, "prefix_tokens");
  const auto parents =
      parent ? fixed_column<std::int64_t>(*parent, "parent") : Column<std::int64_t>(0);
  const Workload workload{view(arrivals), view(prompts), view(outputs), view(priorities),
                          view(prefixes), view(shared),  view(parents)};
  const auto options = options_of(instances, prefix_reuse, preemption, decision_iterations,
                                  schedule, chunked_prefill, watermark, surplus);
  WorkloadResult result;
  {
    const py::gil_scoped_release release;
    result = run_workload(profile, options, workload, {concurrency, until_sim_s});
  }
  py::dict columns;
  columns["submitted_sim_s"] = to_numpy(result.submitted_sim_s);
  columns["first_token_sim_s"] = to_numpy(result.first_token_sim_s);
  columns["last_token_sim_s"] = to_numpy(result.last_token_sim_s);
  columns["instance"] = to_numpy(result.instance);
  columns["generated_tokens"] = to_numpy(result.generated_tokens);
  columns["busy_sim_s"] = result.busy_sim_s;
  columns["preemptions"] = result.preemptions;
  return columns;
}

void bind_profile(py::module_& m) {
  const Profile defaults;
  py::class_<Profile>(m, "Profile", "Cost of one iteration and capacity of one instance.",
                      py::is_final())
      .def(py::init<double, double, double, double, double, double, double, double, bool, double,
                    double, std::int64_t, std::int32_t, std::int32_t, std::int32_t, std::int64_t,
                    double, double>(),
           py::kw_only(), "w_ms"_a = 0.0, "g_ms"_a = 0.0, "h_ms"_a = 0.0, "b_ms"_a = 0.0,
           "k_ms"_a = 0.0, "q_ms"_a = 0.0, "c_ms"_a = 0.0, "k_mixed_ms"_a = 0.0, "c_once"_a = false,
           "d_ms"_a = 0.0, "e_ms"_a = 0.0, "kv_capacity_tokens"_a,
           "block_tokens"_a = defaults.block_tokens, "chunk_tokens"_a = defaults.chunk_tokens,
           "max_sequences"_a = defaults.max_sequences, "kv_bytes_per_token"_a = 0,
           "pcie_gb_per_s"_a = 0.0, "host_gb"_a = 0.0)
      .def("__copy__", [](const Profile& profile) { return Profile(profile); })
      .def_readwrite("w_ms", &Profile::w_ms)
      .def_readwrite("g_ms", &Profile::g_ms)
      .def_readwrite("h_ms", &Profile::h_ms)
      .def_readwrite("b_ms", &Profile::b_ms)
      .def_readwrite("k_ms", &Profile::k_ms)
      .def_readwrite("q_ms", &Profile::q_ms)
      .def_readwrite("c_ms", &Profile::c_ms)
      .def_readwrite("k_mixed_ms", &Profile::k_mixed_ms)
      .def_readwrite("c_once", &Profile::c_once)
      .def_readwrite("d_ms", &Profile::d_ms)
      .def_readwrite("e_ms", &Profile::e_ms)
      .def_readwrite("kv_capacity_tokens", &Profile::kv_capacity_tokens)
      .def_readwrite("block_tokens", &Profile::block_tokens)
      .def_readwrite("chunk_tokens", &Profile::chunk_tokens)
      .def_readwrite("max_sequences", &Profile::max_sequences)
      .def_readwrite("kv_bytes_per_token", &Profile::kv_bytes_per_token)
      .def_readwrite("pcie_gb_per_s", &Profile::pcie_gb_per_s)
      .def_readwrite("host_gb", &Profile::host_gb);
}

}  // namespace

void bind_instance(py::module_& m) {
  bind_profile(m);

  py::class_<Request>(m, "Request", "The work of one LLM call on an instance.", py::is_final())
      .def(
          py::init([](std::int32_t prompt_tokens, std::int32_t output_tokens, std::int64_t priority,
                      const Segments& prefix, std::int32_t reused_tokens, double reused_share) {
            return Request{prompt_tokens,       output_tokens, priority,
                           segments_of(prefix), reused_tokens, reused_share};
          }),
          "prompt_tokens"_a, "output_tokens"_a, "priority"_a = 0, "prefix"_a = py::tuple(),
          "reused_tokens"_a = 0, "reused_share"_a = 0.0)
      .def_readonly("prompt_tokens", &Request::prompt_tokens)
      .def_readonly("output_tokens", &Request::output_tokens)
      .def_readonly("priority", &Request::priority)
      .def_readonly("reused_tokens", &Request::reused_tokens)
      .def_readonly("reused_share", &Request::reused_share)
      .def_property_readonly("prefix", [](const Request& request) {
        Segments prefix;
        for (const Segment& segment : request.prefix) {
          prefix.emplace_back(segment.id, segment.tokens);
        }
        return prefix;
      });

  py::class_<Completion>(m, "Completion", "A request that left: complete, or aborted.",
                         py::is_final())
      .def_readonly("id", &Completion::id)
      .def_readonly("instance", &Completion::instance)
      .def_readonly("output_tokens", &Completion::output_tokens)
      .def_readonly("first_token_sim_s", &Completion::first_token_sim_s)
      .def_readonly("last_token_sim_s", &Completion::last_token_sim_s)
      .def_readonly("preempted_sim_s", &Completion::preempted_sim_s)
      .def_readonly("aborted", &Completion::aborted);

  py::class_<InstanceStatus>(m, "InstanceStatus",
                             "State of an instance at its pool's current time.", py::is_final())
      .def_readonly("kv_used_blocks", &InstanceStatus::kv_used_blocks)
      .def_readonly("kv_cached_blocks", &InstanceStatus::kv_cached_blocks)
      .def_readonly("kv_capacity_blocks", &InstanceStatus::kv_capacity_blocks)
      .def_readonly("kv_host_blocks", &InstanceStatus::kv_host_blocks)
      .def_readonly("running", &InstanceStatus::running)
      .def_readonly("waiting", &InstanceStatus::waiting)
      .def_readonly("preemptions", &InstanceStatus::preemptions)
      .def_readonly("swapped_blocks", &InstanceStatus::swapped_blocks)
      .def_readonly("prefix_hit_tokens", &InstanceStatus::prefix_hit_tokens)
      .def_readonly("reused_tokens", &InstanceStatus::reused_tokens)
      .def_readonly("sequence_tokens", &InstanceStatus::sequence_tokens);

  py::class_<InstancePool>(
      m, "InstancePool", "Data-parallel replicas behind a least-loaded dispatcher.", py::is_final())
      .def(py::init([](const Profile& profile, std::int32_t instances, bool prefix_reuse,
                       const std::string& preemption, std::int32_t decision_iterations,
                       const std::string& schedule, bool chunked_prefill, double watermark,
                       bool surplus) {
             return InstancePool(
                 profile, options_of(instances, prefix_reuse, preemption, decision_iterations,
                                     schedule, chunked_prefill, watermark, surplus));
           }),
           "profile"_a, "instances"_a = 1, "prefix_reuse"_a = false, "preemption"_a = "recompute",
           "decision_iterations"_a = 1, "schedule"_a = "mixed", "chunked_prefill"_a = true,
           "watermark"_a = 0.0, "surplus"_a = false)
      .def("submit", &InstancePool::submit, "id"_a, "request"_a, "now_sim_s"_a)
      .def("abort", &InstancePool::abort, "id"_a, "now_sim_s"_a, "keep"_a = false)
      .def("discard", &InstancePool::discard, "id"_a, "now_sim_s"_a)
      .def("reprioritize", &InstancePool::reprioritize, "priorities"_a, "now_sim_s"_a)
      .def("next_event_sim_s", &InstancePool::next_event_sim_s)
      .def(
          "advance",
          [](InstancePool& pool, double until_sim_s) {
            std::vector<Completion> out;
            pool.advance(until_sim_s, out);
            return out;
          },
          "until_sim_s"_a)
      .def("outstanding", &InstancePool::outstanding)
      .def("busy_sim_s", &InstancePool::busy_sim_s, "instance"_a)
      .def("preemptions", &InstancePool::preemptions)
      .def(
          "progress",
          [](const InstancePool& pool, std::int32_t instance) {
            py::dict output_tokens;
            for (const Progress& one : pool.progress(instance)) {
              output_tokens[py::int_(one.id)] = one.output_tokens;
            }
            return output_tokens;
          },
          "instance"_a = 0)
      .def("status", &InstancePool::status, "instance"_a = 0)
      .def(
          "cached_tokens",
          [](const InstancePool& pool, std::int32_t instance, const Segments& prefix) {
            return pool.cached_tokens(instance, segments_of(prefix));
          },
          "instance"_a, "prefix"_a)
      .def_static("check_fits", &InstancePool::check_fits, "profile"_a, "request"_a)
      .def_static("iteration_sim_s", &InstancePool::iteration_sim_s, "profile"_a, "sequences"_a,
                  "kv_tokens"_a, "prefill_tokens"_a = 0)
      .def_static("isolated_sim_s", &InstancePool::isolated_sim_s, "profile"_a, "request"_a,
                  "chunked_prefill"_a = true);

  m.def("simulate", &simulate,
        "Run a workload; returns columns of n rows and the totals busy_sim_s, preemptions.",
        "profile"_a, "arrival_sim_s"_a, "prompt_tokens"_a, "output_tokens"_a,
        "priority"_a = py::none(), "prefix_id"_a = py::none(), "prefix_tokens"_a = py::none(),
        "parent"_a = py::none(), "instances"_a = 1, "prefix_reuse"_a = false, "concurrency"_a = 0,
        "preemption"_a = "recompute", "decision_iterations"_a = 1, "schedule"_a = "mixed",
        "chunked_prefill"_a = true, "watermark"_a = 0.0, "surplus"_a = false,
        "until_sim_s"_a = std::numeric_limits<double>::infinity());
}
