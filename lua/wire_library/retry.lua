-- glidemq_retryJobs: requeue failed jobs.
--   KEYS 1 failed, 2 scheduled, 3 events, 4 id   ARGV 1 count (0 = all), 2 now   -> jobs requeued
--   Bound: 1,000 jobs per call.   errors: 'ERR invalid timestamp'
-- glidemq_revoke: cancel a job.
--   KEYS 1 job, 2 stream, 3 scheduled, 4 failed, 5 events   ARGV 1 id, 2 now, 3 group
--   -> 'revoked' (it will not run) | 'flagged' (it is active, waits for something or has ended) | 'not_found'
--   Bound: core/find_waiting.lua and W.find_entry.
local W = G.W

local PAGE = 1000

-- Requeue the job like a new one: without a slot in its group and without the field of a revocation.
local function retry(q, id, now)
  local h = G.job_of(q, id)
  if not h.state then return false end
  local key = q.J .. id
  redis.call('ZADD', q.scheduled, G.scheduled_score(h.priority, now), id)
  redis.call('HDEL', key, 'revoked', 'stalledCount', 'suspectLimit')
  redis.call('HSET', key, 'state', 'delayed', 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '', 'eid', '')
  if h.groupKey then redis.call('HSET', key, 'slot', '0') end
  return true
end

G.export('retryJobs', { 'allow-oom' }, G.for_operators(function(keys, args)
  local q, now, left, retried = W.queue(keys[4], 'id'), tonumber(args[2]), G.num(args[1]), 0
  if not now or now ~= now then return redis.error_reply('ERR invalid timestamp') end
  left = left <= 0 and W.JOBS_A_CALL or math.min(math.ceil(left), W.JOBS_A_CALL)
  for _ = 1, W.JOBS_A_CALL / PAGE do
    local ids = left > 0 and redis.call('ZRANGE', keys[1], 0, math.min(left, PAGE) - 1) or {}
    if #ids == 0 then break end
    redis.call('ZREM', keys[1], unpack(ids))
    for _, id in ipairs(ids) do
      if retry(q, id, now) then retried = retried + 1 end
    end
    left = left - #ids
  end
  if retried > 0 then
    G.emit(keys[3], 'retried', G.int(retried))
    W.wake(q)
  end
  return retried
end))

local function leave_waiting(q, id, h, group)
  redis.call('ZREM', q.scheduled, id)
  if h.state ~= 'waiting' then return end
  local entry = W.find_entry(q, id, h.eid, h.timestamp)
  if entry then return W.ack(q, group, entry) end
  -- A copy left in a list counts as a waiting job until a worker pops it.
  local place = G.waiting_place(q, id, h)
  if place and (place.list or place.set) then G.leave_waiting(q, id, place) end
end

local STOPPABLE = { waiting = true, delayed = true, prioritized = true }

G.export('revoke', { 'allow-oom' }, G.for_operators(function(keys, args)
  local id, now = args[1], G.num(args[2])
  local q = W.job_queue(keys[1], id)
  local h = G.job_of(q, id)
  if not h.state then return 'not_found' end
  redis.call('HSET', keys[1], 'revoked', '1')
  local stopped = STOPPABLE[h.state] or h.state == 'group-waiting'
  if h.state == 'group-waiting' then
    redis.call('ZREM', q.P .. 'groupq:' .. (h.groupKey or ''), id)
  elseif stopped then
    leave_waiting(q, id, h, args[3])
  end
  if stopped then W.end_revoked(q, id, h, now) end
  G.emit(q.events, 'revoked', id)
  return stopped and 'revoked' or 'flagged'
end))
