// Replays a trace of movement with agents that run ahead on predictions.
//
// As in Replay, but every agent-step is an execution of speculation.hpp: it looks around, sends the
// calls of the trace, and moves as in the trace, whether it has seen the truth or not. Everything
// that an agent sees becomes part of its mind. A trace of movement does not say what an agent does
// to those who see it, so each step of an agent in sight is a new value: an execution is wrong as
// soon as it has seen an agent, or has missed one, at a step that this agent had not reached. The
// calls of a wrong execution are lost and sent again.
//
// If the trace knows dependencies by value, an execution reads the results of these agent-steps and
// nothing else: it is wrong if one of them was not known, or was wrong itself.
//
// An agent runs ahead if the chance that it would be wrong is at most `risk_max`. It is learned in
// two stages: the chance that an agent that lags behind is in sight by then, from pairs of agents
// at the steps that most agents have passed; and how often such steps were wrong so far.
#pragma once

#include <memory>

#include "metropolis/metric.hpp"
#include "metropolis/replay.hpp"

namespace metropolis {

struct OptimisticOptions {
  double perception_radius;
  double max_velocity;
  double cluster_radius;  // agents within it commit together
  // The greatest chance of being wrong, from 0 to 1, at which an agent still runs ahead while the
  // instances are idle; negative: none does. An agent of average lead over the slowest one is
  // allowed half of it while `calls_half` calls are in flight, a seventeenth with twice as many.
  double risk_max;
  double calls_half;  // positive; infinity: the load does not matter
  bool step_priority = true;
};

// The arguments are borrowed, as Replay's. `controller` uses the versioned rule. Throws
// std::invalid_argument as Replay does.
std::unique_ptr<TraceReplay> make_optimistic_replay(const TraceView& trace, Controller& controller,
                                                    InstancePool& instances, const Metric& metric,
                                                    const OptimisticOptions& options);

}  // namespace metropolis
