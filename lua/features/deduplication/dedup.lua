-- Deduplicate jobs: one entry per dedup id, `jobId:timestamp` of the job that was added last. `dedup-expiry` holds the
-- time at which an entry may be deleted; nothing else bounds that hash.

local SWEEP_MAX, RECHECK_MS = 100, 3600000

-- Delete the job that the newer one replaces, with all its keys, and continue its group.
local function replace(q, id, h, now, quiet)
  redis.call('ZREM', q.scheduled, id)
  G.groups.leave_group(q, id, h, now, true)
  G.flows.child_ended(q, id, G.flows.REMOVED, 'replaced by a newer job', now)
  G.purge(q, { id })
  if not quiet then G.emit(q.events, 'removed', id) end
end

local function existing_job(q, dedup_id)
  local found = redis.call('HGET', q.dedup, dedup_id)
  return string.match(found or '', '^(.*):(%d+)$')
end

-- Return nil = add; 'skipped' and the id of the existing job; 'replaced' = add, the existing job was deleted. ttl: ms
-- for which the last added job counts as a duplicate; 0 = simple and debounce depend on the job only.
G.deduplicate = function(q, dedup_id, mode, ttl, now, quiet)
  local id, at = existing_job(q, dedup_id)
  if not id then return nil end
  if mode == 'throttle' then
    if ttl > 0 and not G.window_is_over(tonumber(at), ttl, now) then return 'skipped', id end
    return nil
  end
  if mode ~= 'simple' and mode ~= 'debounce' then return nil end
  if ttl > 0 and G.window_is_over(tonumber(at), ttl, now) then return nil end
  local h = G.job_of(q, id)
  if not h.state or G.TERMINAL[h.state] then return nil end
  if mode == 'debounce' and (h.state == 'delayed' or h.state == 'prioritized') then
    replace(q, id, h, now, quiet)
    return 'replaced'
  end
  return 'skipped', id
end

G.record_dedup = function(q, dedup_id, id, ttl, now)
  redis.call('HSET', q.dedup, dedup_id, id .. ':' .. G.int(now))
  redis.call('ZADD', q.dedup_expiry, G.int(G.clamped_time(now + math.max(ttl, RECHECK_MS))), dedup_id)
end

-- Delete entries that have expired and whose job has ended, at most SWEEP_MAX per call.
G.sweep_dedup = function(q, now)
  G.repair_times(q.dedup_expiry, G.TIME_MAX, now)
  for _, dedup_id in ipairs(redis.call('ZRANGEBYSCORE', q.dedup_expiry, '-inf', G.int(now), 'LIMIT', 0, SWEEP_MAX)) do
    local id = existing_job(q, dedup_id)
    local state = id and G.pcall('HGET', q.J .. id, 'state')
    if type(state) == 'string' and not G.TERMINAL[state] then
      redis.call('ZADD', q.dedup_expiry, G.int(now + RECHECK_MS), dedup_id)
    else
      redis.call('HDEL', q.dedup, dedup_id)
      redis.call('ZREM', q.dedup_expiry, dedup_id)
    end
  end
end
