#include "metropolis/speculation.hpp"

#include <stdexcept>
#include <string>
#include <tuple>

#include "speculation_state.hpp"

namespace metropolis {

namespace {

template <class M>
class SpeculationOf final : public Speculation {
 public:
  SpeculationOf(Controller& controller, M metric, const SpeculationOptions& options,
                std::span<const EntityId> bodies, std::span<const Sighting> entities,
                std::span<const Digest> minds)
      : controller_(controller),
        options_(options),
        versions_(std::move(metric), options.perception_radius) {
    for (const Sighting& entity : entities) versions_.add_initial(entity);
    agents_.resize(bodies.size());
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      agents_[i].body = bodies[i];
      agents_[i].final_mind = minds[i];
      agent_of_[bodies[i]] = static_cast<AgentId>(i);
      touched_agents_.insert(static_cast<AgentId>(i));
    }
  }

  std::vector<SpeculationCommand> start() override {
    Dispatches dispatches;
    controller_.start(dispatches);
    add_turns(dispatches);
    return settle();
  }

  void observed(ExecutionId id, Reads reads) override {
    const ProceedPointer proceed = proceed_in_flight(id);
    if (!proceed) {
      refuse_resolution(id, "observes");
      return;
    }
    proceed->reads = std::move(reads);
    proceed->observed = true;
    if (!proceed->sure) add_readers(proceed->reads, proceed->step, id);
    dirty_.insert({proceed->step, PROCEED, proceed->agent});
    touch_turn_at(proceed->agent, proceed->step, true);
  }

  void proceeded(ExecutionId id, Digest mind) override {
    const ProceedPointer proceed = proceed_in_flight(id);
    if (!proceed) {
      refuse_resolution(id, "proceeds");
      return;
    }
    if (!proceed->observed) {
      throw std::invalid_argument("the execution " + std::to_string(id) + " has not observed");
    }
    proceed->after = mind;
    proceed->ended = true;
    touch_turn_at(proceed->agent, proceed->step, false);
    become_eligible(proceed->agent, proceed->step);
  }

  void resolved(ExecutionId id, Reads reads, std::vector<Write> writes,
                std::vector<Sighting> events, std::vector<Digest> minds) override {
    const auto found = resolutions_.find(id);
    if (found == resolutions_.end() || found->second->result) {
      if (proceed_in_flight(id)) {
        throw std::invalid_argument("the execution " + std::to_string(id) + " is no resolution");
      }
      return;
    }
    const ResolutionPointer resolution = found->second;
    if (minds.size() != resolution->members.size()) {
      throw std::invalid_argument("the result of the execution " + std::to_string(id) + " has " +
                                  std::to_string(minds.size()) + " minds; it needs " +
                                  std::to_string(resolution->members.size()));
    }
    resolution->reads = std::move(reads);
    resolution->minds = std::move(minds);
    put(resolution, std::move(writes), std::move(events));
  }

  void lost(ExecutionId id) override { lose(id, false); }
  void failed(ExecutionId id) override { lose(id, true); }

  std::vector<SpeculationCommand> settle() override {
    do {
      stop_what_is_not_final();
      retract();
    } while (commit_turns());
    versions_.collect(floor());
    readers_.collect(floor());
    dispatch_turns();
    resolve_speculatively();
    return taken();
  }

  std::vector<AgentId> candidates() const override {
    return {candidates_.begin(), candidates_.end()};
  }

  std::vector<SpeculationCommand> speculate(std::span<const AgentId> chosen) override {
    std::vector<std::pair<Step, AgentId>> ordered;
    for (const AgentId agent : chosen) {
      if (!candidates_.contains(agent)) {
        throw std::invalid_argument("agent " + std::to_string(agent) +
                                    " is not a candidate for speculation");
      }
      ordered.emplace_back(of(agent).next, agent);
    }
    std::ranges::sort(ordered);
    for (const auto& [step, agent] : ordered) proceed(agent, step, false);
    return taken();
  }

  Step next_step(AgentId agent) const override { return of(agent).next; }

  Position next_position(AgentId agent) const override {
    return position(agent, of(agent).next, false);
  }

  std::vector<Sighting> answer(const Question& question, Step step, bool final) const override {
    return versions_.answer(question, step, final);
  }

  Step floor() const override { return controller_.floor(); }

  void validate() const override {
    controller_.validate();
    versions_.validate();
    for (const AgentState& agent : agents_) {
      if (agent.next < agent.final) throw std::logic_error("the next step is below the final one");
      for (const auto& [step, proceed] : agent.proceeds) {
        check(is_valid(*proceed), proceed->id, "is not valid");
        check(!proceed->sure || !proceed->observed || is_final(*proceed), proceed->id,
              "is sure and has read what is not final");
      }
      for (const auto& [step, result] : agent.results) {
        check(!result->valid || is_valid(*result), result->id, "is not valid");
      }
    }
  }

 private:
  enum DirtyKind : std::uint8_t { PROCEED, RESOLUTION };
  // (step, kind, agent or execution): what may have lost its validity.
  using Dirty = std::tuple<Step, DirtyKind, std::int64_t>;
  using Kind = SpeculationCommand::Kind;
  struct TurnOrder {
    bool operator()(const TurnPointer& a, const TurnPointer& b) const {
      return std::tie(a->step, a->agents) < std::tie(b->step, b->agents);
    }
  };

  static void check(bool holds, ExecutionId id, const char* what) {
    if (!holds) throw std::logic_error("the execution " + std::to_string(id) + " " + what);
  }

  AgentState& of(AgentId agent) { return agents_[static_cast<std::size_t>(agent)]; }
  const AgentState& of(AgentId agent) const { return agents_[static_cast<std::size_t>(agent)]; }

  static ProceedPointer at(const std::map<Step, ProceedPointer>& proceeds, Step step) {
    const auto found = proceeds.find(step);
    return found == proceeds.end() ? nullptr : found->second;
  }
  static ResolutionPointer at(const std::map<Step, ResolutionPointer>& resolutions, Step step) {
    const auto found = resolutions.find(step);
    return found == resolutions.end() ? nullptr : found->second;
  }

  ProceedPointer proceed_in_flight(ExecutionId id) const {
    const auto found = proceeds_.find(id);
    return found == proceeds_.end() || found->second->ended ? nullptr : found->second;
  }

  void refuse_resolution(ExecutionId id, const char* what) const {
    const auto found = resolutions_.find(id);
    if (found != resolutions_.end() && !found->second->result) {
      throw std::invalid_argument("the resolution " + std::to_string(id) + " " + what);
    }
  }

  // --- predicates

  bool holds(const Reads& reads, Step step, bool final) const {
    return std::ranges::all_of(reads, [&](const Read& read) {
      return versions_.answer(read.question, step, final) == read.answer;
    });
  }

  // The mind at the beginning of `step` and the resolution whose result it is; nullopt: unknown.
  std::optional<std::pair<Digest, ExecutionId>> mind_before(AgentId agent, Step step) const {
    const AgentState& state = of(agent);
    if (step == state.final) return {{state.final_mind, NO_EXECUTION}};
    const ResolutionPointer result = at(state.results, step - 1);
    if (!result || !result->valid) return std::nullopt;
    return {{result->mind_of(agent), result->id}};
  }

  bool is_valid(const ProceedState& proceed) const {
    const auto mind = mind_before(proceed.agent, proceed.step);
    return (!mind || mind->first == proceed.before) &&
           (proceed.sure || holds(proceed.reads, proceed.step, false));
  }

  bool is_valid(const ResolutionState& resolution) const {
    const Step step = resolution.step;
    for (const ProceedPointer& one : resolution.proceeds) {
      if (at(of(one->agent).proceeds, step) != one) return false;
    }
    if (resolution.sure) return true;
    for (const AgentId member : resolution.members) {
      bool alone = true;
      for_coupled(member, step, [&](AgentId other) {
        alone = alone && (resolution.has(other) || !is_eligible(other, step));
      });
      if (!alone) return false;
    }
    return holds(resolution.reads, step, false);
  }

  bool is_final(const ProceedState& proceed) const {
    const AgentState& state = of(proceed.agent);
    return proceed.step == state.final && proceed.before == state.final_mind &&
           holds(proceed.reads, proceed.step, true);
  }

  bool may_commit(const TurnState& turn, const ResolutionState& result) const {
    return result.members == turn.agents &&
           std::ranges::all_of(result.proceeds, [&](const auto& one) { return is_final(*one); }) &&
           holds(result.reads, turn.step, true);
  }

  bool is_eligible(AgentId agent, Step step) const {
    const ProceedPointer proceed = at(of(agent).proceeds, step);
    return proceed && proceed->ended && !is_closed(agent, step);
  }

  bool is_closed(AgentId agent, Step step) const {
    const TurnPointer& turn = of(agent).turn;
    return turn && turn->step == step && std::ranges::all_of(turn->agents, [&](AgentId member) {
             const ProceedPointer one = at(of(member).proceeds, step);
             return one && one->ended && one->sure;
           });
  }

  bool is_held(AgentId agent, Step step) const { return held_.contains({agent, step}); }

  Position position(AgentId agent, Step step, bool final) const {
    const Sighting* body = versions_.value(of(agent).body, step, final);
    if (body == nullptr) throw std::logic_error("an agent has no body");
    return body->position;
  }

  // Visits the agents other than `agent` that act in one cluster with it at `step`.
  template <class Visit>
  void for_coupled(AgentId agent, Step step, const Visit& visit) const {
    const Position here = position(agent, step, false);
    std::vector<AgentId> found;  // a visit may search again
    versions_.for_near(here, options_.cluster_radius, step, false, [&](const Sighting& one) {
      const auto other = agent_of_.find(one.entity);
      if (other == agent_of_.end() || other->second == agent) return;
      if (versions_.metric().within(here, one.position, options_.cluster_radius, 0)) {
        found.push_back(other->second);
      }
    });
    for (const AgentId other : found) visit(other);
  }

  // --- changes

  void mark(const ResolutionPointer& resolution) {
    if (resolution) dirty_.insert({resolution->step, RESOLUTION, resolution->id});
  }

  void mark_resolutions_of(AgentId agent, Step step) {
    mark(at(of(agent).results, step));
    mark(at(of(agent).resolving, step));
  }

  void become_eligible(AgentId agent, Step step) {
    touched_agents_.insert(agent);
    mark_resolutions_of(agent, step);
    for_coupled(agent, step, [&](AgentId other) { mark_resolutions_of(other, step); });
  }

  void touch_turn_at(AgentId agent, Step step, bool unchecked) {
    const TurnPointer& turn = of(agent).turn;
    if (!turn || turn->step != step) return;
    touched_turns_.insert(turn);
    if (unchecked) unchecked_.insert(agent);
  }

  void add_readers(const Reads& reads, Step step, ExecutionId id) {
    for (const Read& read : reads) {
      const Question& question = read.question;
      const bool wide = !M::PLANAR || !(question.radius <= versions_.side());
      const bool of_entity = question.kind == Question::Kind::ENTITY;
      readers_.add(question, step, id,
                   wide || of_entity ? CellKey{0} : versions_.cell_of(question.centre), wide);
    }
  }

  void mark_reader(ExecutionId id) {
    const auto proceed = proceeds_.find(id);
    if (proceed != proceeds_.end()) {
      dirty_.insert({proceed->second->step, PROCEED, proceed->second->agent});
      return;
    }
    const auto resolution = resolutions_.find(id);
    if (resolution != resolutions_.end()) mark(resolution->second);
  }

  void mark_readers_near(std::vector<CellKey> cells, Step since, Step until) {
    readers_.of_cells(cells, since, until, [&](ExecutionId id) { mark_reader(id); });
  }

  std::vector<CellKey> cells_around(const Sighting* one, const Sighting* other = nullptr) const {
    std::vector<CellKey> cells;
    if constexpr (M::PLANAR) {
      for (const Sighting* each : {one, other}) {
        if (each == nullptr) continue;
        versions_.for_cells(each->position, versions_.side(),
                            [&](CellKey key) { cells.push_back(key); });
      }
      std::ranges::sort(cells);
      const auto rest = std::ranges::unique(cells);
      cells.erase(rest.begin(), rest.end());
    }
    return cells;
  }

  void value_changed(EntityId entity, Step since, Step until, const Sighting* before,
                     const Sighting* now) {
    readers_.of_entity(entity, since, until, [&](ExecutionId id) { mark_reader(id); });
    mark_readers_near(cells_around(before, now), since, until);
    const auto agent = agent_of_.find(entity);
    if (agent != agent_of_.end()) moved_.push_back({agent->second, since, until});
  }

  void mark_moved() {
    for (const auto& [agent, since, until] : std::exchange(moved_, {})) {
      const auto& proceeds = of(agent).proceeds;
      for (auto one = proceeds.lower_bound(since); one != proceeds.end(); ++one) {
        if (one->first >= until) break;
        mark_resolutions_of(agent, one->first);
        if (!one->second->ended) continue;
        const Step step = one->first;
        for_coupled(agent, step, [&](AgentId other) { mark_resolutions_of(other, step); });
      }
    }
  }

  auto changed() {
    return [this](EntityId entity, Step since, Step until, const Sighting* before,
                  const Sighting* now) { value_changed(entity, since, until, before, now); };
  }

  void mark_events(const SpeculationResult& result) {
    for (const Sighting& event : result.events) {
      mark_readers_near(cells_around(&event), result.step + 1, result.step + 2);
    }
  }

  void put(const ResolutionPointer& resolution, std::vector<Write> writes,
           std::vector<Sighting> events) {
    const Step step = resolution->step;
    std::set<ResolutionPointer> replaced;
    for (const AgentId member : resolution->members) {
      if (const ResolutionPointer other = at(of(member).results, step)) replaced.insert(other);
    }
    for (const Write& write : writes) {
      if (const SpeculationResult* other = versions_.writer(write.entity, step)) {
        replaced.insert(resolutions_.at(other->id));
      }
    }
    for (const ResolutionPointer& other : replaced) {
      forget(other);
      commands_.push_back({Kind::DROP, other->id, step, {}, {}, NO_EXECUTION, false});
    }
    resolution->result = std::make_shared<SpeculationResult>(
        SpeculationResult{resolution->id, step, std::move(writes), std::move(events), false});
    versions_.put(resolution->result, changed());
    mark_events(*resolution->result);
    mark_moved();
    if (!resolution->sure) add_readers(resolution->reads, step, resolution->id);
    mark(resolution);
    for (const AgentId member : resolution->members) {
      AgentState& state = of(member);
      state.resolving.erase(step);
      state.results[step] = resolution;
      dirty_.insert({step + 1, PROCEED, member});
      advance_next(member);
      if (state.turn && state.turn->step == step) pending_turns_.insert(state.turn);
    }
  }

  // Removes a result that is not final.
  void forget(const ResolutionPointer& resolution) {
    versions_.drop(resolution->result, changed());
    mark_events(*resolution->result);
    for (const AgentId member : resolution->members) {
      of(member).results.erase(resolution->step);
      lower_next(member, resolution->step);
    }
    resolutions_.erase(resolution->id);
    mark_moved();
  }

  void advance_next(AgentId agent) {
    AgentState& state = of(agent);
    state.next = std::max(state.next, state.final);
    for (auto one = state.results.find(state.next); one != state.results.end(); ++one) {
      if (one->first != state.next || !one->second->valid) break;
      ++state.next;
    }
    touched_agents_.insert(agent);
  }

  void lower_next(AgentId agent, Step step) {
    AgentState& state = of(agent);
    state.next = std::min(state.next, std::max(step, state.final));
    touched_agents_.insert(agent);
  }

  void lose(ExecutionId id, bool is_failure) {
    if (const ProceedPointer proceed = proceed_in_flight(id)) {
      if (is_failure) hold({proceed->agent}, proceed->step, proceed->sure, id);
      remove(*proceed);
      return;
    }
    const auto found = resolutions_.find(id);
    if (found == resolutions_.end() || found->second->result) return;
    const ResolutionPointer resolution = found->second;
    if (is_failure) hold(resolution->members, resolution->step, resolution->sure, id);
    remove(*resolution);
  }

  void hold(const std::vector<AgentId>& members, Step step, bool sure, ExecutionId id) {
    if (sure) {
      throw std::invalid_argument("the execution " + std::to_string(id) +
                                  " is sure: its error ends the run");
    }
    for (const AgentId member : members) {
      held_.insert({member, step});
      touched_agents_.insert(member);
    }
  }

  // Removes a proceed from the valid ones.
  void remove(const ProceedState& removed) {
    const ProceedPointer proceed = proceeds_.at(removed.id);
    const AgentId agent = proceed->agent;
    const Step step = proceed->step;
    const TurnPointer turn = of(agent).turn;
    const bool reopens = is_closed(agent, step);
    of(agent).proceeds.erase(step);
    proceeds_.erase(proceed->id);
    mark_resolutions_of(agent, step);
    gaps_.insert(agent);
    touched_agents_.insert(agent);
    touch_turn_at(agent, step, false);
    if (!reopens) return;
    for (const AgentId member : turn->agents) {
      if (member != agent) become_eligible(member, step);
    }
  }

  // Removes a resolution in flight.
  void remove(const ResolutionState& removed) {
    const ResolutionPointer resolution = resolutions_.at(removed.id);
    resolutions_.erase(resolution->id);
    for (const AgentId member : resolution->members) {
      of(member).resolving.erase(resolution->step);
      touched_agents_.insert(member);
      touch_turn_at(member, resolution->step, false);
    }
  }

  void stop(const ProceedState& proceed) {
    if (!proceed.ended) abort_command(proceed.id);
    remove(proceed);
  }

  void abort(const ResolutionState& resolution) {
    abort_command(resolution.id);
    remove(resolution);
  }

  void abort_command(ExecutionId id) {
    commands_.push_back({Kind::ABORT, id, 0, {}, {}, NO_EXECUTION, false});
  }

  // --- progress

  void stop_what_is_not_final() {
    for (const AgentId agent : std::exchange(unchecked_, {})) {
      const TurnPointer& turn = of(agent).turn;
      if (!turn) continue;
      const ProceedPointer proceed = at(of(agent).proceeds, turn->step);
      if (proceed && proceed->observed && !is_final(*proceed)) stop(*proceed);
    }
  }

  void retract() {
    while (!dirty_.empty()) {
      const auto [step, kind, key] = *dirty_.begin();
      dirty_.erase(dirty_.begin());
      if (kind == PROCEED) {
        const ProceedPointer one = at(of(static_cast<AgentId>(key)).proceeds, step);
        if (one && !is_valid(*one)) stop(*one);
        continue;
      }
      const auto found = resolutions_.find(key);
      if (found == resolutions_.end() || !found->second->valid) continue;
      const ResolutionPointer resolution = found->second;
      if (is_valid(*resolution)) continue;
      resolution->valid = false;
      if (!resolution->result) {
        abort(*resolution);
        continue;
      }
      for (const AgentId member : resolution->members) lower_next(member, step);
    }
    while (!gaps_.empty()) {
      const AgentId agent = *gaps_.begin();
      gaps_.erase(gaps_.begin());
      stop_beyond_gap(agent);
      gaps_.erase(agent);
    }
  }

  // Ends the proceeds in flight that began with a mind that is being replaced.
  void stop_beyond_gap(AgentId agent) {
    Step first = of(agent).final;
    std::vector<ProceedPointer> later;
    for (const auto& [step, proceed] : of(agent).proceeds) {
      if (step == first) ++first;
    }
    for (const auto& [step, proceed] : of(agent).proceeds) {
      if (step > first && !proceed->ended) later.push_back(proceed);
    }
    for (const ProceedPointer& proceed : later) stop(*proceed);
  }

  bool commit_turns() {
    std::vector<ResolutionPointer> ready;
    for (const TurnPointer& turn : std::exchange(pending_turns_, {})) {
      if (of(turn->agents.front()).turn != turn) continue;
      const ResolutionPointer result = at(of(turn->agents.front()).results, turn->step);
      if (result && may_commit(*turn, *result)) ready.push_back(result);
    }
    for (const ResolutionPointer& result : ready) commit(result);
    return !ready.empty();
  }

  void commit(const ResolutionPointer& result) {
    const Step step = result->step;
    result->result->final = true;
    commands_.push_back({Kind::COMMIT, result->id, step, result->members, {}, NO_EXECUTION, false});
    for (const AgentId member : result->members) {
      if (const ResolutionPointer other = at(of(member).resolving, step)) abort(*other);
    }
    std::vector<Position> positions;
    for (const AgentId member : result->members) {
      AgentState& state = of(member);
      if (const ProceedPointer current = at(state.proceeds, step)) stop(*current);
    }
    for (std::size_t i = 0; i < result->members.size(); ++i) {
      const AgentId member = result->members[i];
      AgentState& state = of(member);
      touched_turns_.erase(state.turn);
      state.turn = nullptr;
      state.final = step + 1;
      state.final_mind = result->minds[i];
      state.results.erase(step);
      held_.erase({member, step});
      dirty_.insert({step + 1, PROCEED, member});
      advance_next(member);
      positions.push_back(position(member, step + 1, true));
    }
    resolutions_.erase(result->id);
    Dispatches dispatches;
    controller_.commit(result->members, positions, dispatches);
    add_turns(dispatches);
  }

  void add_turns(const Dispatches& dispatches) {
    for (const auto& cluster : dispatches.clusters) {
      const auto members = dispatches.members(cluster);
      const auto turn = std::make_shared<const TurnState>(
          TurnState{cluster.step, {members.begin(), members.end()}});
      for (const AgentId member : members) {
        of(member).turn = turn;
        unchecked_.insert(member);
      }
      pending_turns_.insert(turn);
      touched_turns_.insert(turn);
    }
  }

  void dispatch_turns() {
    for (const TurnPointer& turn : std::exchange(touched_turns_, {})) {
      const Step step = turn->step;
      for (const AgentId agent : turn->agents) {
        const ProceedPointer one = at(of(agent).proceeds, step);
        if (!one) {
          proceed(agent, step, true);
        } else if (one->observed && !one->sure) {
          one->sure = true;
          if (!one->ended) {
            commands_.push_back({Kind::PROMOTE, one->id, step, {}, {}, NO_EXECUTION, false});
          }
        }
      }
      if (!is_closed(turn->agents.front(), step)) continue;
      std::set<ResolutionPointer> overlapping;
      bool resolves = false;
      for (const AgentId agent : turn->agents) {
        if (const ResolutionPointer other = at(of(agent).resolving, step)) {
          overlapping.insert(other);
          resolves = resolves || other->sure;
        }
      }
      if (resolves) continue;
      for (const ResolutionPointer& other : overlapping) abort(*other);
      resolve(turn->agents, step, true);
    }
    touched_turns_.clear();  // aborts touch the turns again
  }

  void resolve_speculatively() {
    const auto agents = std::exchange(touched_agents_, {});
    std::set<AgentId> tried = std::exchange(blocked_, {});
    tried.insert(agents.begin(), agents.end());
    for (const AgentId agent : tried) {
      const Step step = of(agent).next;
      if (!is_eligible(agent, step) || at(of(agent).resolving, step)) continue;
      const std::vector<AgentId> cluster = component(agent, step);
      if (std::ranges::any_of(cluster, [&](AgentId one) { return is_held(one, step); })) {
        blocked_.insert(agent);
      } else {
        resolve(cluster, step, false);
      }
    }
    for (const AgentId agent : agents) update_candidate(agent);
  }

  void update_candidate(AgentId agent) {
    const AgentState& state = of(agent);
    if (state.next < options_.target_step && !state.proceeds.contains(state.next) &&
        !is_held(agent, state.next)) {
      candidates_.insert(agent);
    } else {
      candidates_.erase(agent);
    }
  }

  std::vector<AgentId> component(AgentId first, Step step) const {
    std::set<AgentId> found{first};
    std::vector<AgentId> edge{first};
    while (!edge.empty()) {
      const AgentId agent = edge.back();
      edge.pop_back();
      for_coupled(agent, step, [&](AgentId other) {
        if (is_eligible(other, step) && found.insert(other).second) edge.push_back(other);
      });
    }
    return {found.begin(), found.end()};
  }

  void proceed(AgentId agent, Step step, bool sure) {
    const auto mind = mind_before(agent, step);
    if (!mind) throw std::logic_error("an agent proceeds without a mind");
    const auto one = std::make_shared<ProceedState>(
        ProceedState{++last_id_, agent, step, mind->first, sure, false, false, 0, {}});
    of(agent).proceeds[step] = one;
    proceeds_[one->id] = one;
    candidates_.erase(agent);
    touched_agents_.insert(agent);
    commands_.push_back({Kind::PROCEED, one->id, step, {agent}, {}, mind->second, sure});
  }

  void resolve(const std::vector<AgentId>& agents, Step step, bool sure) {
    auto resolution = std::make_shared<ResolutionState>();
    resolution->id = ++last_id_;
    resolution->step = step;
    resolution->members = agents;
    resolution->sure = sure;
    std::vector<ExecutionId> ids;
    for (const AgentId agent : agents) {
      resolution->proceeds.push_back(of(agent).proceeds.at(step));
      ids.push_back(resolution->proceeds.back()->id);
      of(agent).resolving[step] = resolution;
    }
    resolutions_[resolution->id] = resolution;
    commands_.push_back(
        {Kind::RESOLVE, resolution->id, step, agents, std::move(ids), NO_EXECUTION, sure});
  }

  std::vector<SpeculationCommand> taken() { return std::exchange(commands_, {}); }

  Controller& controller_;
  SpeculationOptions options_;
  SpeculationVersions<M> versions_;
  ReaderIndex readers_;
  std::vector<AgentState> agents_;
  std::unordered_map<EntityId, AgentId> agent_of_;
  std::unordered_map<ExecutionId, ProceedPointer> proceeds_;        // the valid ones
  std::unordered_map<ExecutionId, ResolutionPointer> resolutions_;  // in flight, and results
  std::set<std::pair<AgentId, Step>> held_;
  ExecutionId last_id_ = 0;
  std::vector<SpeculationCommand> commands_;
  std::set<AgentId> candidates_;

  // What the next `settle` must look at.
  std::set<Dirty> dirty_;
  std::vector<std::tuple<AgentId, Step, Step>> moved_;  // bodies, and the steps that see it
  std::set<AgentId> gaps_;                              // a proceed was removed
  std::set<AgentId> unchecked_;  // their proceed may have read what is not final
  std::set<AgentId> touched_agents_;
  std::set<AgentId> blocked_;  // not resolved because of a member that is held
  std::set<TurnPointer, TurnOrder> touched_turns_, pending_turns_;
};

}  // namespace

std::unique_ptr<Speculation> make_speculation(Controller& controller, const Metric& metric,
                                              const SpeculationOptions& options,
                                              std::span<const EntityId> bodies,
                                              std::span<const Sighting> entities,
                                              std::span<const Digest> minds) {
  if (bodies.size() != controller.agents() || minds.size() != bodies.size()) {
    throw std::invalid_argument("there must be a body and a mind for each agent");
  }
  return std::visit(
      [&](const auto& chosen) -> std::unique_ptr<Speculation> {
        using M = std::decay_t<decltype(chosen)>;
        return std::make_unique<SpeculationOf<M>>(controller, chosen, options, bodies, entities,
                                                  minds);
      },
      metric);
}

}  // namespace metropolis
