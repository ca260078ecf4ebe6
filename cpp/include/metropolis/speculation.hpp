// Speculation: executions that run ahead of a controller; metropolis/speculation/base.py describes
// the protocol, metropolis/speculation/reference.py specifies every command.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "metropolis/controller.hpp"
#include "metropolis/metric.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

using EntityId = std::int32_t;
using Digest = std::int64_t;  // equal for equal values
using ExecutionId = std::int64_t;

inline constexpr ExecutionId NO_EXECUTION = 0;
inline constexpr EntityId ENTITY_MAX = 9'999'999;  // versions are found by it in a vector

// What a reader sees of an entity, or of an event that the entity has emitted.
struct Sighting {
  EntityId entity;
  Position position;
  Digest digest;

  friend bool operator==(const Sighting& a, const Sighting& b) {
    return a.entity == b.entity && a.position.x == b.position.x && a.position.y == b.position.y &&
           a.digest == b.digest;
  }
};

// A read of the world as of the beginning of a step, and its answer.
struct Question {
  enum class Kind : std::uint8_t {
    ENTITY,    // the value of `entity`; an empty answer: there is none
    ENTITIES,  // those perceived within `radius` of `centre`, by entity
    EVENTS,    // those of the step before perceived there, by source, then by order of emission
  };
  Kind kind;
  EntityId entity;
  Position centre;
  double radius;
};
struct Read {
  Question question;
  std::vector<Sighting> answer;
};
using Reads = std::vector<Read>;

// A new value of an entity; nullopt: the entity is removed.
struct Write {
  EntityId entity;
  std::optional<Sighting> value;
};

// The mind of an agent after a step.
struct Mind {
  AgentId agent;
  Digest digest;
};

// The bodies that an agent expects to have at the beginnings of the steps after the next one.
struct Forecast {
  AgentId agent;
  std::vector<Sighting> bodies;
};

// Ascending.
struct NumbersInUse {
  std::vector<EntityId> entities;
  std::vector<Digest> digests;
};

struct SpeculationCommand {
  enum class Kind : std::uint8_t { ABORT, DROP, COMMIT, PROMOTE, RESOLVE, PROCEED, PREDICT };
  Kind kind;
  ExecutionId id;
  Step step = 0;
  std::vector<AgentId> agents;        // COMMIT, RESOLVE: the members; PROCEED, PREDICT: the agent
  std::vector<ExecutionId> proceeds;  // RESOLVE: of each member
  ExecutionId mind = NO_EXECUTION;    // PROCEED: the resolution whose mind it begins with;
                                      // PREDICT: that whose forecast it is from
  bool sure = false;                  // RESOLVE, PROCEED: it reads final versions only
};

class Speculation {
 public:
  virtual ~Speculation() = default;

  // All members but validate() throw std::invalid_argument. After an exception of settle(), the
  // object cannot be used any more. Other exceptions leave it unchanged.

  // Returns the sure executions that can run initially. Called once.
  virtual std::vector<SpeculationCommand> start() = 0;

  // Events of executions in flight; those of executions that ended are ignored. They take effect in
  // settle(). Refused: an event that does not belong to its execution, or is out of turn.
  virtual void observed(ExecutionId id, Reads reads) = 0;
  virtual void proceeded(ExecutionId id) = 0;
  virtual void resolved(ExecutionId id, Reads reads, std::vector<Write> writes,
                        std::vector<Sighting> events, std::vector<Mind> minds,
                        std::vector<Forecast> forecasts) = 0;
  virtual void lost(ExecutionId id) = 0;
  virtual void failed(ExecutionId id) = 0;

  // The commands that follow from the events.
  virtual std::vector<SpeculationCommand> settle() = 0;

  // The agents that could proceed speculatively now, ascending.
  virtual std::vector<AgentId> candidates() const = 0;
  virtual bool is_candidate(AgentId agent) const = 0;
  // Lets candidates proceed.
  virtual std::vector<SpeculationCommand> speculate(std::span<const AgentId> agents) = 0;

  // The first step of an agent without a valid result.
  virtual Step next_step(AgentId agent) const = 0;
  // The answer that an execution of `step` gets now; final: from final versions only.
  virtual std::vector<Sighting> answer(const Question& question, Step step, bool final) const = 0;
  virtual Step floor() const = 0;

  // The numbers in use; all others may be given to other entities and values. Takes time linear in
  // the number of executions and versions.
  virtual NumbersInUse in_use() const = 0;

  // Checks every invariant; throws std::logic_error. Slow; for tests.
  virtual void validate() const = 0;
};

struct SpeculationOptions {
  double perception_radius;  // the usual radius of questions
  double cluster_radius;     // agents within it act in one cluster
  Step target_step;
};

// `controller` has not started, and outlives the result. bodies[i]: the entity of agent i, one of
// `entities`, which exist at step 0. minds: of each agent.
std::unique_ptr<Speculation> make_speculation(Controller& controller, const Metric& metric,
                                              const SpeculationOptions& options,
                                              std::span<const EntityId> bodies,
                                              std::span<const Sighting> entities,
                                              std::span<const Digest> minds);

}  // namespace metropolis
