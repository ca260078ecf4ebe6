// Changes of the state, and what they make doubtful.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "indexed_speculation.hpp"
#include "speculation_checks.hpp"

namespace metropolis {

// Adds a result, in place of those of the same step with a common member or write.
void IndexedSpeculation::put(const ResolutionPointer& resolution, std::vector<Write> writes,
                             std::vector<Sighting> events) {
  const Step step = resolution->step;
  std::map<AgentId, ResolutionPointer> replaced;  // by smallest agent
  for (const AgentId member : resolution->members) {
    if (const ResolutionPointer other = at(state_.of(member).results, step)) {
      replaced[other->members.front()] = other;
    }
  }
  for (const Write& write : writes) {
    if (const SpeculationResult* other = state_.versions.writer(write.entity, step)) {
      const ResolutionPointer& result = state_.resolutions.at(other->id);
      replaced[result->members.front()] = result;
    }
  }
  for (const auto& [agent, other] : replaced) {
    forget(other);
    command(Kind::DROP, other->id, step);
  }
  resolution->result = std::make_shared<SpeculationResult>(
      SpeculationResult{resolution->id, step, std::move(writes), std::move(events), false});
  std::vector<ValueChange> changes;
  state_.versions.put(resolution->result, changes);
  suspect_readers_of(*resolution->result, changes);
  if (!resolution->sure) add_readers(resolution->reads, step, resolution->id);
  suspect(resolution);
  for (const AgentId member : resolution->members) {
    AgentState& agent = state_.of(member);
    agent.resolving.erase(step);
    agent.results[step] = resolution;
    suspects_.push({step + 1, PROCEED, member});
    advance_next(member);
    if (agent.turn && agent.turn->step == step) pending_turns_.insert(agent.turn);
  }
}

// Drops a result that writes what a committed result of the same step has written: its members
// were there only in predictions, which are being replaced.
void IndexedSpeculation::refuse(const ResolutionPointer& resolution) {
  if (resolution->sure) {
    throw std::invalid_argument(name_of(resolution->id) +
                                " writes an entity that a committed result of step " +
                                std::to_string(resolution->step) + " has written");
  }
  hold(resolution->members, resolution->step, false, resolution->id);
  remove(resolution);
  command(Kind::DROP, resolution->id, resolution->step);
}

// Lets others see, in steps without a result, what a member of `source` expects of its body. The
// forecast is kept as a result of each step; it takes the place of an earlier forecast.
void IndexedSpeculation::predict(const ResolutionState& source, const Forecast& forecast) {
  AgentState& agent = state_.of(forecast.agent);
  const auto remove = [&](const ResolutionPointer known) {
    forget(known);
    command(Kind::DROP, known->id, known->step);
  };
  Step step = source.step;
  for (Sighting body : forecast.bodies) {
    if (!state_.is_before_target(++step)) break;
    body.entity = agent.body;
    const ResolutionPointer known = at(agent.results, step);
    if (known && !known->predicted) continue;
    if (known && known->result->writes.front().value == body) continue;
    if (known) remove(known);
    if (state_.versions.writer(agent.body, step)) continue;
    const auto one = std::make_shared<ResolutionState>();
    one->id = ++last_id_;
    one->step = step;
    one->members = {forecast.agent};
    one->valid = false;
    one->predicted = true;
    one->result = std::make_shared<SpeculationResult>(
        SpeculationResult{one->id, step, {{agent.body, body}}, {}, false});
    state_.resolutions[one->id] = agent.results[step] = one;
    std::vector<ValueChange> changes;
    state_.versions.put(one->result, changes);
    suspect_readers_of(*one->result, changes);
    command(Kind::PREDICT, one->id, step, {forecast.agent});
    commands_.back().mind = source.id;
  }
  std::vector<ResolutionPointer> beyond;
  for (auto one = agent.results.upper_bound(step); one != agent.results.end(); ++one) {
    if (one->second->predicted) beyond.push_back(one->second);
  }
  for (const ResolutionPointer& one : beyond) remove(one);
}

// Removes a result that is not final.
void IndexedSpeculation::forget(const ResolutionPointer& resolution) {
  std::vector<ValueChange> changes;
  state_.versions.drop(resolution->result, changes);
  for (const AgentId member : resolution->members) {
    state_.of(member).results.erase(resolution->step);
    lower_next(member, resolution->step);
  }
  state_.resolutions.erase(resolution->id);
  suspect_readers_of(*resolution->result, changes);
}

void IndexedSpeculation::lose(ExecutionId id, bool is_failure) {
  check_event(id);
  if (const ProceedPointer proceed = state_.proceed_in_flight(id)) {
    if (is_failure) hold({proceed->agent}, proceed->step, proceed->sure, id);
    remove(proceed);
  } else if (const ResolutionPointer resolution = state_.resolution_in_flight(id)) {
    if (is_failure) hold(resolution->members, resolution->step, resolution->sure, id);
    remove(resolution);
  }
}

void IndexedSpeculation::hold(const std::vector<AgentId>& members, Step step, bool sure,
                              ExecutionId id) {
  if (sure) {
    throw std::invalid_argument(name_of(id) + " is sure: its error ends the run");
  }
  for (const AgentId member : members) {
    state_.held.insert({member, step});
    touched_agents_.insert(member);
  }
}

// Removes a proceed from the valid ones.
void IndexedSpeculation::remove(const ProceedPointer& proceed) {
  const AgentId agent = proceed->agent;
  const Step step = proceed->step;
  const TurnPointer turn = state_.of(agent).turn;
  const bool reopens = state_.is_closed(agent, step);
  if (proceed->ended && proceed->sure) ++turn->open;
  state_.proceeds.erase(proceed->id);
  state_.of(agent).proceeds.erase(step);
  suspect_resolutions_of(agent, step);
  gaps_.insert(agent);
  touched_agents_.insert(agent);
  touch_turn(agent, step);
  if (!reopens) return;
  for (const AgentId member : turn->agents) {
    if (member != agent) become_eligible(member, step);
  }
}

// Removes a resolution in flight.
void IndexedSpeculation::remove(const ResolutionPointer& resolution) {
  state_.resolutions.erase(resolution->id);
  for (const AgentId member : resolution->members) {
    state_.of(member).resolving.erase(resolution->step);
    touched_agents_.insert(member);
    touch_turn(member, resolution->step);
  }
}

void IndexedSpeculation::stop(const ProceedPointer& proceed) {
  if (!proceed->ended) command(Kind::ABORT, proceed->id, proceed->step);
  remove(proceed);
}

void IndexedSpeculation::abort(const ResolutionPointer& resolution) {
  command(Kind::ABORT, resolution->id, resolution->step);
  remove(resolution);
}

void IndexedSpeculation::add_readers(const Reads& reads, Step step, ExecutionId id) {
  for (const Read& read : reads) {
    readers_.add(read.question, state_.versions.cell_of(read.question), step, id);
  }
}

void IndexedSpeculation::become_eligible(AgentId agent, Step step) {
  touched_agents_.insert(agent);
  suspect_resolutions_of(agent, step);
  if (!state_.is_closed(agent, step)) suspect_resolutions_beside(agent, step);
}

void IndexedSpeculation::advance_next(AgentId agent) {
  AgentState& state = state_.of(agent);
  state.next = std::max(state.next, state.final);
  for (auto one = state.results.find(state.next); one != state.results.end(); ++one) {
    if (one->first != state.next || !one->second->valid) break;
    ++state.next;
  }
  touched_agents_.insert(agent);
}

void IndexedSpeculation::lower_next(AgentId agent, Step step) {
  AgentState& state = state_.of(agent);
  state.next = std::min(state.next, std::max(step, state.final));
  touched_agents_.insert(agent);
}

void IndexedSpeculation::touch_turn(AgentId agent, Step step) {
  const TurnPointer& turn = state_.of(agent).turn;
  if (turn && turn->step == step) touched_turns_.insert(turn);
}

void IndexedSpeculation::uncheck(AgentId agent, Step step) {
  const TurnPointer& turn = state_.of(agent).turn;
  if (turn && turn->step == step) unchecked_.insert({step, turn->agents.front(), agent});
}

void IndexedSpeculation::suspect(const ResolutionPointer& resolution) {
  suspects_.push({resolution->step, RESOLUTION, resolution->id});
}

void IndexedSpeculation::suspect_resolutions_of(AgentId agent, Step step) {
  if (const ResolutionPointer result = at(state_.of(agent).results, step)) suspect(result);
  if (const ResolutionPointer one = at(state_.of(agent).resolving, step)) suspect(one);
}

void IndexedSpeculation::suspect_resolutions_beside(AgentId agent, Step step) {
  auto nearby = state_.search(step);
  for (const AgentId other : state_.coupled(agent, nearby)) suspect_resolutions_of(other, step);
}

void IndexedSpeculation::suspect_reader(ExecutionId id) {
  if (const auto proceed = state_.proceeds.find(id); proceed != state_.proceeds.end()) {
    suspects_.push({proceed->second->step, PROCEED, proceed->second->agent});
  } else if (const auto one = state_.resolutions.find(id); one != state_.resolutions.end()) {
    suspect(one->second);
  }
}

void IndexedSpeculation::suspect_readers_of(const SpeculationResult& result,
                                            const std::vector<ValueChange>& changes) {
  const auto visit = [&](ExecutionId id) { suspect_reader(id); };
  std::vector<CellKey> cells;
  const auto visit_cells = [&](Step since, Step until) {
    sort_unique(cells);
    readers_.of_cells(cells, since, until, visit);
    cells.clear();
  };
  for (const ValueChange& change : changes) {
    readers_.of_entity(change.entity, change.since, change.until, visit);
    if (change.before) state_.versions.cells_around(change.before->position, cells);
    if (change.now) state_.versions.cells_around(change.now->position, cells);
    visit_cells(change.since, change.until);
    if (const auto agent = state_.agent_of(change.entity)) {
      suspect_resolutions_around(*agent, change.since, change.until);
    }
  }
  for (const Sighting& event : result.events) {
    state_.versions.cells_around(event.position, cells);
    visit_cells(result.step + 1, result.step + 2);
  }
}

// Suspects the resolutions whose cluster may have changed because `moved` stands elsewhere.
void IndexedSpeculation::suspect_resolutions_around(AgentId moved, Step since, Step until) {
  const auto& proceeds = state_.of(moved).proceeds;
  for (auto one = proceeds.lower_bound(since); one != proceeds.end(); ++one) {
    if (one->first >= until) break;
    suspect_resolutions_of(moved, one->first);
    if (one->second->ended) suspect_resolutions_beside(moved, one->first);
  }
}

}  // namespace metropolis
