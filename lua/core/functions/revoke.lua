-- revoke: a job shall not run, or stop running.
-- KEYS 1 meta   ARGV 1 id   -> 'revoked' | 'flagged' | 'not_found'
-- What has not begun, is suspended or waits for its children ends as failed, reason `revoked`. All else gets the mark
-- `revoked`: an active job's worker reads it with its next heartbeat and stops the handler; a waiting job that is not
-- found by a bounded look (deep in a list, or pushed by a peer) is refused when it is taken; for one that has ended it
-- means nothing.
-- Bound: core/waiting_place.lua, nothing that grows with the queue (W56).

-- A call that is repeated because its reply was lost.
local function ended_by_this(q, id, h)
  return h.state == 'failed' and h.revoked == '1' and redis.call('HGET', q.J .. id, 'failedReason') == 'revoked'
end

-- States of jobs that end at once; so do waiting ones whose place is found.
local ENDS = { delayed = true, prioritized = true, ['group-waiting'] = true, suspended = true,
  ['waiting-children'] = true }

G.export('revoke', { 'allow-oom' }, function(keys, args)
  local q, id = G.queue(keys[1]), args[1]
  local h, now = G.job_of(q, id), G.now(q)
  if not h.state then return 'not_found' end
  if ended_by_this(q, id, h) then return 'revoked' end
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
  else
    redis.call('ZREM', h.state == 'suspended' and q.suspended or q.scheduled, id)
  end
  return 'revoked'
end)
