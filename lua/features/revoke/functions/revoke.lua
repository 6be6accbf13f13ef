-- revoke: cancel a job.
-- KEYS 1 meta   ARGV 1 id 2 (optional) states, separated by spaces; '' = all   -> 'revoked' | 'flagged' | 'not_found', or
-- the state of the job if it is none of these
-- A job that has not started, is suspended or waits for its children fails with the reason `revoked`. Any other job
-- gets the field `revoked`: the worker of an active job reads it with its next heartbeat and cancels the handler; a
-- waiting job that the bounded search does not find (deep in a list, or pushed by a peer) is rejected when it is
-- fetched; a finished job is not affected.
-- Bound: core/find_waiting.lua; independent of the queue's length.

-- Return whether an earlier call revoked the job: the call is repeated because its reply was lost.
local function ended_by_this(q, id, h)
  return h.state == 'failed' and h.revoked == '1' and redis.call('HGET', q.J .. id, 'failedReason') == 'revoked'
end

-- States in which the job fails immediately; so does a waiting job whose place is found.
local ENDS = { delayed = true, prioritized = true, ['group-waiting'] = true, suspended = true,
  ['waiting-children'] = true }

G.export('revoke', { 'allow-oom' }, G.for_operators(function(q, r)
  local id = r.id
  local h, now = G.job_of(q, id), G.now(q)
  if not h.state then return 'not_found' end
  if ended_by_this(q, id, h) then return 'revoked' end
  if not G.is_among(r.states, h.state) then return h.state end
  redis.call('HSET', q.J .. id, 'revoked', '1')
  local place = h.state == 'waiting' and G.waiting_place(q, id, h)
  if place and place.held then place = nil end
  if not place and not ENDS[h.state] then
    G.emit(q.events, 'revoked', id)
    return 'flagged'
  end
  G.end_job(q, id, now, 'revoked', 'revoked', h.processedOn)
  if place then
    G.leave_waiting(q, id, place)
  elseif h.state == 'suspended' then
    redis.call('ZREM', q.suspended, id)
  else
    G.leave_scheduled(q, id, h)
  end
  return 'revoked'
end))
