-- revoke, revoke_jobs: cancel a job, or up to a hundred.
-- revoke:      KEYS 1 meta   ARGV 1 id 2 (optional) states, separated by spaces; '' = all   -> 'revoked' | 'flagged' |
--   'not_found', or the state of the job if it is none of these
-- revoke_jobs: KEYS 1 meta   ARGV 1 packed {ids, states}   -> packed outcomes of the first ids: as above, or 'error' if the
--   job's keys are damaged. The other ids, if any, are left to the next call.
-- A job that has not started, is suspended or waits for its children fails with the reason `revoked`. Any other job
-- gets the field `revoked`: the worker of an active job reads it with its next heartbeat and cancels the handler; a
-- waiting job that the bounded search does not find (deep in a list, or pushed by a peer) is rejected when it is
-- fetched; a finished job is not affected.
-- Bound: core/find_waiting.lua; independent of the queue's length. revoke_jobs: the jobs given (the client sends 100 at
-- most); it ends after the second search for a job whose record names no entry.

-- Return whether an earlier call revoked the job: the call is repeated because its reply was lost.
-- discard: give up the remaining attempts of an active job.
-- KEYS 1 meta   ARGV 1 id   -> 'ok' | 'gone' | the state that does not allow it (only `active` does)
-- The attempt continues. If it fails or stalls, the job fails without another one. Workers of version 0.1.0 and of peers
-- ignore the field `discarded`. Bound: constant.

local function ended_by_this(q, id, h)
  return h.state == 'failed' and h.revoked == '1' and redis.call('HGET', q.J .. id, 'failedReason') == 'revoked'
end

-- States in which the job fails immediately; so does a waiting job whose place is found.
local ENDS = { delayed = true, prioritized = true, ['group-waiting'] = true, suspended = true,
  ['waiting-children'] = true }

-- Return the outcome, and true if the job had to be searched for.
local function revoke(q, id, states)
  local h, now = G.job_of(q, id), G.now(q)
  if not h.state then return 'not_found' end
  if ended_by_this(q, id, h) then return 'revoked' end
  if not G.is_among(states, h.state) then return h.state end
  G.set(q, id, 'revoked', '1')
  local place = h.state == 'waiting' and G.waiting_place(q, id, h)
  local is_searched = h.state == 'waiting' and (not place or place.entry ~= nil and not h.eid)
  if place and place.held then place = nil end
  if not place and not ENDS[h.state] then
    G.emit(q.events, 'revoked', id)
    return 'flagged', is_searched
  end
  G.end_job(q, id, now, 'revoked', 'revoked', h.processedOn)
  if place then
    G.leave_waiting(q, id, place)
  elseif h.state == 'suspended' then
    redis.call('ZREM', q.suspended, id)
  else
    G.leave_scheduled(q, id, h)
  end
  return 'revoked', is_searched
end

G.export('revoke', { 'allow-oom' }, G.for_operators(function(q, r)
  return (revoke(q, r.id, r.states))
end))

local SEARCHES_MAX = 2

G.export('revoke_jobs', { 'allow-oom' }, G.for_operators(function(q, r)
  local outcomes, searches = {}, 0
  local function one(id)
    local outcome, is_searched = revoke(q, id, r.states)
    if is_searched then searches = searches + 1 end
    return outcome
  end
  for i, id in ipairs(r.ids) do
    if searches >= SEARCHES_MAX then break end
    local ok, outcome = G.attempt(one, id)
    outcomes[i] = ok and outcome or 'error'
  end
  return outcomes
end))

G.export('discard', { 'allow-oom' }, G.for_operators(function(q, r)
  local state = redis.call('HGET', q.J .. r.id, 'state')
  if not state then return 'gone' end
  if state ~= 'active' then return state end
  G.set(q, r.id, 'discarded', '1')
  return 'ok'
end))
