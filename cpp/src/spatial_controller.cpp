#include "spatial_controller.hpp"

#include <memory>
#include <span>
#include <type_traits>
#include <variant>

#include "metropolis/checks.hpp"
#include "metropolis/controllers.hpp"

namespace metropolis {

std::unique_ptr<Controller> make_controller(const Rule& rule, const Metric& metric,
                                            double max_velocity,
                                            std::span<const Position> positions,
                                            std::span<const Step> steps, Step target_step,
                                            bool check_moves) {
  check_start(rule, metric, max_velocity, positions, steps, target_step);
  if (rule.is_lockstep()) {
    return make_barrier_controller(metric, max_velocity, positions, steps.empty() ? 0 : steps[0],
                                   target_step, check_moves);
  }
  return std::visit(
      [&](const auto& chosen) -> std::unique_ptr<Controller> {
        using M = std::decay_t<decltype(chosen)>;
        return std::make_unique<SpatialController<M>>(rule, chosen, max_velocity, positions, steps,
                                                      target_step, check_moves);
      },
      metric);
}

}  // namespace metropolis
