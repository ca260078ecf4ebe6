// settle(): retracts what is not valid, commits what is final, and starts what can run.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "indexed_speculation.hpp"

namespace metropolis {

std::vector<SpeculationCommand> IndexedSpeculation::settle() {
  check_runs();
  failed_ = true;
  auto commands = settled();
  failed_ = false;
  return commands;
}

std::vector<SpeculationCommand> IndexedSpeculation::settled() {
  do {
    stop_what_is_not_final();
    retract();
  } while (commit_turns());
  state_.versions.collect(floor());
  readers_.collect(floor());
  dispatch_turns();
  resolve_speculatively();
  return take_commands();
}

// Stops the proceeds of dispatched clusters that have read wrong predictions.
void IndexedSpeculation::stop_what_is_not_final() {
  for (const auto& [step, first, agent] : unchecked_.take()) {
    const ProceedPointer proceed = at(state_.of(agent).proceeds, step);
    if (proceed && proceed->observed && !state_.is_final(*proceed)) stop(proceed);
  }
}

// Stops the proceeds and marks the resolutions that are not valid, lowest step first.
void IndexedSpeculation::retract() {
  while (!suspects_.empty()) {
    const Suspect suspect = suspects_.top();
    while (!suspects_.empty() && suspects_.top() == suspect) suspects_.pop();
    const auto [step, kind, key] = suspect;
    if (kind == PROCEED) {
      const ProceedPointer one = at(state_.of(static_cast<AgentId>(key)).proceeds, step);
      if (one && !state_.is_valid(*one)) stop(one);
      continue;
    }
    const auto found = state_.resolutions.find(key);
    if (found == state_.resolutions.end()) continue;
    const ResolutionPointer resolution = found->second;
    if (!resolution->valid || state_.is_valid(*resolution)) continue;
    resolution->valid = false;
    if (!resolution->result) {
      abort(resolution);
    } else {
      for (const AgentId member : resolution->members) lower_next(member, step);
    }
  }
  for (const AgentId agent : gaps_.take()) stop_beyond_gap(agent);
  gaps_.clear();  // stops make gaps; they lie beyond the first one
}

// Ends the proceeds in flight that began with a mind that is being replaced.
void IndexedSpeculation::stop_beyond_gap(AgentId agent) {
  Step first = state_.of(agent).final;
  std::vector<ProceedPointer> later;
  for (const auto& [step, proceed] : state_.of(agent).proceeds) {
    if (step == first) {
      ++first;
    } else if (!proceed->ended) {
      later.push_back(proceed);
    }
  }
  for (const ProceedPointer& proceed : later) stop(proceed);
}

// Commits the results of dispatched clusters that are final; whether there was one.
bool IndexedSpeculation::commit_turns() {
  std::vector<ResolutionPointer> ready;
  for (const TurnPointer& turn : pending_turns_.take()) {
    const AgentState& first = state_.of(turn->agents.front());
    if (first.turn != turn) continue;
    const ResolutionPointer result = at(first.results, turn->step);
    if (result && state_.may_commit(*turn, *result)) ready.push_back(result);
  }
  for (const ResolutionPointer& result : ready) commit(result);
  return !ready.empty();
}

void IndexedSpeculation::commit(const ResolutionPointer& result) {
  const Step step = result->step;
  state_.versions.finalise(*result->result);
  command(Kind::COMMIT, result->id, step, result->members);
  for (const ResolutionPointer& other : state_.resolving_at(step, result->members)) abort(other);
  for (const AgentId member : result->members) {
    if (const ProceedPointer current = at(state_.of(member).proceeds, step)) stop(current);
  }
  std::vector<Position> positions;
  for (std::size_t i = 0; i < result->members.size(); ++i) {
    const AgentId member = result->members[i];
    AgentState& agent = state_.of(member);
    agent.turn = nullptr;
    agent.final = step + 1;
    agent.final_mind = result->minds[i].digest;
    agent.results.erase(step);
    state_.held.erase({member, step});
    suspects_.push({step + 1, PROCEED, member});
    advance_next(member);
    positions.push_back(state_.position(member, step + 1, true));
  }
  state_.resolutions.erase(result->id);
  Dispatches dispatches;
  controller_.commit(result->members, positions, dispatches);
  add_turns(dispatches);
}

void IndexedSpeculation::add_turns(const Dispatches& dispatches) {
  for (const auto& cluster : dispatches.clusters) {
    const auto members = dispatches.members(cluster);
    for (const AgentId member : members) {
      if (state_.of(member).final == cluster.step) continue;
      throw std::invalid_argument("the controller dispatches agent " + std::to_string(member) +
                                  " at step " + std::to_string(cluster.step) +
                                  "; its next step is " + std::to_string(state_.of(member).final));
    }
    const auto turn = std::make_shared<TurnState>(
        TurnState{cluster.step, {members.begin(), members.end()}, members.size()});
    for (const AgentId member : members) {
      state_.of(member).turn = turn;
      uncheck(member, turn->step);
    }
    pending_turns_.insert(turn);
    touched_turns_.insert(turn);
  }
}

// Lets the dispatched clusters proceed, and resolves those whose members have proceeded.
void IndexedSpeculation::dispatch_turns() {
  for (const TurnPointer& turn : touched_turns_.take()) {
    const bool committed = state_.of(turn->agents.front()).turn != turn;
    if (!committed) dispatch(*turn);
  }
  touched_turns_.clear();  // aborts touch the turns again
}

void IndexedSpeculation::dispatch(TurnState& turn) {
  for (const AgentId agent : turn.agents) {
    const ProceedPointer one = at(state_.of(agent).proceeds, turn.step);
    if (!one) {
      proceed(agent, turn.step, true);
    } else if (one->observed && !one->sure) {
      one->sure = true;
      if (one->ended) {
        --turn.open;
      } else {
        command(Kind::PROMOTE, one->id, turn.step);
      }
    }
  }
  if (!state_.is_closed(turn.agents.front(), turn.step)) return;
  const auto overlapping = state_.resolving_at(turn.step, turn.agents);
  if (std::ranges::any_of(overlapping, &ResolutionState::sure)) return;
  for (const ResolutionPointer& other : overlapping) abort(other);
  resolve(turn.agents, turn.step, true);
}

void IndexedSpeculation::resolve_speculatively() {
  for (const AgentId agent : std::exchange(blocked_, {})) touched_agents_.insert(agent);
  const std::vector<AgentId> agents = touched_agents_.take();
  std::set<std::pair<AgentId, Step>> waiting;  // members of clusters with one that is held
  for (const AgentId agent : agents) {
    const Step step = state_.of(agent).next;
    if (!state_.is_eligible(agent, step) || at(state_.of(agent).resolving, step)) continue;
    if (!waiting.contains({agent, step})) {
      const std::vector<AgentId> cluster = state_.component(agent, step);
      if (std::ranges::none_of(cluster, [&](AgentId one) { return state_.is_held(one, step); })) {
        resolve(cluster, step, false);
        continue;
      }
      for (const AgentId member : cluster) waiting.insert({member, step});
    }
    blocked_.push_back(agent);
  }
  for (const AgentId agent : agents) {
    if (state_.is_candidate(agent)) {
      candidates_.insert(agent);
    } else {
      candidates_.erase(agent);
    }
  }
}

void IndexedSpeculation::proceed(AgentId agent, Step step, bool sure) {
  const auto mind = state_.mind_before(agent, step);
  if (!mind) throw std::logic_error("an agent proceeds without a mind");
  const auto one = std::make_shared<ProceedState>(
      ProceedState{++last_id_, agent, step, mind->first, sure, false, false, {}});
  state_.of(agent).proceeds[step] = one;
  state_.proceeds[one->id] = one;
  candidates_.erase(agent);
  touched_agents_.insert(agent);
  command(Kind::PROCEED, one->id, step, {agent});
  commands_.back().mind = mind->second;
  commands_.back().sure = sure;
}

void IndexedSpeculation::resolve(const std::vector<AgentId>& agents, Step step, bool sure) {
  const auto resolution = std::make_shared<ResolutionState>();
  resolution->id = ++last_id_;
  resolution->step = step;
  resolution->members = agents;
  resolution->sure = sure;
  state_.resolutions[resolution->id] = resolution;
  command(Kind::RESOLVE, resolution->id, step, agents);
  commands_.back().sure = sure;
  for (const AgentId agent : agents) {
    resolution->proceeds.push_back(state_.of(agent).proceeds.at(step));
    commands_.back().proceeds.push_back(resolution->proceeds.back()->id);
    state_.of(agent).resolving[step] = resolution;
  }
}

void IndexedSpeculation::command(Kind kind, ExecutionId id, Step step,
                                 std::vector<AgentId> agents) {
  commands_.push_back({kind, id, step, std::move(agents), {}, NO_EXECUTION, false});
}

std::vector<SpeculationCommand> IndexedSpeculation::take_commands() {
  return std::exchange(commands_, {});
}

}  // namespace metropolis
