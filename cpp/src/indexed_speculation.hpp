// Speculation that examines, after an event, only what the event may have changed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "batch.hpp"
#include "speculation_readers.hpp"
#include "speculation_state.hpp"

namespace metropolis {

class IndexedSpeculation final : public Speculation {
 public:
  IndexedSpeculation(Controller& controller, const Metric& metric,
                     const SpeculationOptions& options, std::span<const EntityId> bodies,
                     std::span<const Sighting> entities, std::span<const Digest> minds);

  std::vector<SpeculationCommand> start() override;
  void observed(ExecutionId id, Reads reads) override;
  void proceeded(ExecutionId id) override;
  void resolved(ExecutionId id, Reads reads, std::vector<Write> writes,
                std::vector<Sighting> events, std::vector<Mind> minds,
                std::vector<Forecast> forecasts) override;
  void lost(ExecutionId id) override;
  void failed(ExecutionId id) override;
  std::vector<SpeculationCommand> settle() override;
  std::vector<AgentId> candidates() const override;
  bool is_candidate(AgentId agent) const override;
  std::vector<SpeculationCommand> speculate(std::span<const AgentId> agents) override;
  Step next_step(AgentId agent) const override;
  std::vector<Sighting> answer(const Question& question, Step step, bool final) const override;
  Step floor() const override;
  NumbersInUse in_use() const override;
  void validate() const override;

 private:
  using Kind = SpeculationCommand::Kind;
  enum SuspectKind : std::uint8_t { PROCEED, RESOLUTION };
  // (step, kind, agent of the proceed or id of the resolution)
  using Suspect = std::tuple<Step, SuspectKind, std::int64_t>;
  struct TurnOrder {
    bool operator()(const TurnPointer& a, const TurnPointer& b) const {  // none share an agent
      return std::tie(a->step, a->agents.front()) < std::tie(b->step, b->agents.front());
    }
  };
  using Turns = Batch<TurnPointer, TurnOrder>;

  // What a change of the state makes doubtful (speculation_changes.cpp).
  void put(const ResolutionPointer& resolution, std::vector<Write> writes,
           std::vector<Sighting> events);
  void refuse(const ResolutionPointer& resolution);
  void predict(const ResolutionState& source, const Forecast& forecast);
  void forget(const ResolutionPointer& resolution);
  void lose(ExecutionId id, bool is_failure);
  void hold(const std::vector<AgentId>& members, Step step, bool sure, ExecutionId id);
  void remove(const ProceedPointer& proceed);
  void remove(const ResolutionPointer& resolution);
  void stop(const ProceedPointer& proceed);
  void abort(const ResolutionPointer& resolution);
  void add_readers(const Reads& reads, Step step, ExecutionId id);
  void become_eligible(AgentId agent, Step step);
  void advance_next(AgentId agent);
  void lower_next(AgentId agent, Step step);
  void touch_turn(AgentId agent, Step step);
  void uncheck(AgentId agent, Step step);
  void suspect(const ResolutionPointer& resolution);
  void suspect_resolutions_of(AgentId agent, Step step);
  void suspect_resolutions_beside(AgentId agent, Step step);
  void suspect_reader(ExecutionId id);
  void suspect_readers_of(const SpeculationResult& result, const std::vector<ValueChange>& changes);
  void suspect_resolutions_around(AgentId moved, Step since, Step until);

  std::vector<SpeculationCommand> settled();
  // The phases of settle() (speculation_progress.cpp).
  void stop_what_is_not_final();
  void retract();
  void stop_beyond_gap(AgentId agent);
  bool commit_turns();
  void commit(const ResolutionPointer& result);
  void add_turns(const Dispatches& dispatches);
  void dispatch_turns();
  void dispatch(TurnState& turn);
  void resolve_speculatively();
  void proceed(AgentId agent, Step step, bool sure);
  void resolve(const std::vector<AgentId>& agents, Step step, bool sure);

  // Throws unless it runs and the execution has been commanded.
  void check_event(ExecutionId id) const;
  void check_runs() const;
  void command(Kind kind, ExecutionId id, Step step, std::vector<AgentId> agents = {});
  std::vector<SpeculationCommand> take_commands();

  Controller& controller_;
  SpeculationState state_;
  SpeculationReaders readers_;
  bool started_ = false;
  bool failed_ = false;  // settle() has thrown
  ExecutionId last_id_ = 0;
  std::vector<SpeculationCommand> commands_;
  std::set<AgentId> candidates_;

  // The members below are what the next settle() must examine.
  // Executions that may have lost their validity; the lowest step on top.
  std::priority_queue<Suspect, std::vector<Suspect>, std::greater<>> suspects_;
  Batch<AgentId> gaps_;  // a proceed was removed
  // Members of turns whose proceed may have read what is not final.
  Batch<std::tuple<Step, AgentId, AgentId>> unchecked_;  // (step, first of the turn, member)
  Batch<AgentId> touched_agents_;  // may be resolved, or candidates, now or no longer
  std::vector<AgentId> blocked_;   // not resolved because of a member that is held
  Turns touched_turns_;            // may need a proceed or a resolution
  Turns pending_turns_;            // may be committed
};

}  // namespace metropolis
