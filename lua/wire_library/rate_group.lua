-- glidemq_rateLimitGroup: rate limit the group of an active job.
-- KEYS 1 job, 2 stream   ARGV 1 id, 2 entry id, 3 group, 4 duration ms, 5 now, 6 broadcast, 7 'requeue' or fail, 8
-- 'front' | 'back', 9 'max' | 'replace'
--   -> when the limit ends, epoch ms as text | 'error:not_active' | 'error:no_group'
-- glidemq_rateLimitGroupExternal: rate limit a group without a job.
-- KEYS 1 ratelimited, 2 events   ARGV 1 group key, 2 duration ms, 3 now, 4 'max' | 'replace'   -> when the limit ends,
-- epoch ms
-- No job of a limited group is activated before that time. The job that met the limit frees its slot and takes one
-- again when it returns, so that the group's concurrency is kept. Bound: constant.
local W = G.W

local function limit(ratelimited, name, now, duration, keep_later)
  local resume_at = G.clamped_time(now + duration)
  local before = keep_later and G.num(redis.call('ZSCORE', ratelimited, name)) or 0
  if before <= G.TIME_MAX then resume_at = math.max(resume_at, before) end
  redis.call('ZADD', ratelimited, G.score(resume_at), name)
  return resume_at
end

-- Place the job before all parked jobs, or behind them.
local function place(q, g, id, h, at_back)
  local score = G.count_of(h.orderingSeq)
  if at_back then
    local last = W.last_place(g)
    if last then
      score = last + 1
    elseif score == 0 then
      score = G.count_of(id)
    end
  end
  redis.call('ZADD', g.queue, G.score(score), id)
  G.set(q, id, 'state', 'group-waiting', 'eid', '')
end

G.export('rateLimitGroup', { 'allow-oom' }, function(keys, args)
  local id, entry, now, duration = args[1], args[2], G.num(args[5]), G.duration(args[4])
  local q = W.job_queue(keys[1], id)
  local before = G.pick(keys[1], 'state', 'groupKey')
  if before.state == 'active' and not G.given(before.groupKey) then return 'error:no_group' end
  local h = W.leave_active(q, id, entry, args[3], args[6] == '1')
  if not h then return 'error:not_active' end
  local g = W.group(q, h.groupKey)
  if W.holds_slot(g, h) then W.free_slot(q, g, id) end
  if args[7] == 'requeue' then
    place(q, g, id, h, args[8] == 'back')
  else
    G.end_failed(q, id, now, 'group rate limited', 'failed', h.processedOn)
  end
  local resume_at = G.text(limit(q.ratelimited, h.groupKey, now, duration, args[9] == 'max'))
  G.emit(q.events, 'group-rate-limited', id, 'groupKey', h.groupKey, 'duration', G.text(duration), 'resumeAt', resume_at)
  return resume_at
end)

G.export('rateLimitGroupExternal', { 'allow-oom' }, function(keys, args)
  local duration = G.duration(args[2])
  local resume_at = limit(keys[1], args[1], G.num(args[3]), duration, args[4] == 'max')
  G.emit(keys[2], 'group-rate-limited', '', 'groupKey', args[1], 'duration', G.text(duration), 'resumeAt',
    G.text(resume_at))
  return resume_at
end)
