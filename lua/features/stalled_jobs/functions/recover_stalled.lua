-- recover_stalled: find jobs of stalled workers and make them ready again. Any worker may call it; one at a time runs
-- it.
-- KEYS 1 meta
-- ARGV 1 packed {holder, hold_ms, lock_ms, max_stalled, quiet, cursor, grace}
-- -> packed {recovered ids, failed ids, cursor, held, interval, policy}     held = 0: another holder has the lock, nothing was
-- read; interval: ms between checks by the policy of the queue, 0 = not set;
-- policy: 1 = the queue has a failure policy, and failed jobs (features/failures)
-- max_stalled, grace: for jobs without a policy of their worker or of the queue (policy.lua).
-- The first call of a round also recovers list jobs that a peer popped and never activated (recover_popped.lua).
-- Bound: 100 pending entries or list jobs per call; call again with the cursor until it is ''.
-- Jobs in a group are recovered by the library that activated them: they hold a slot that must be released.
-- lock_ms: how long a job may go without a heartbeat, if neither its own lockDuration nor that of its worker
-- (policy.lua) is set.

local PENDING_ENTRY = G.rows.pending_entry
local STREAM_CONSUMER = G.rows.stream_consumer
local PAGE = 100
local CONSUMER_KEPT_MS = 3600000
local WATCH_SAMPLE = 20
local SHORTEST_LOCK_MS = 1000
local MUCH = 300
-- cursor: this prefix and a rank; some jobs from lists and the scheduled set are still to be checked
local LISTS = 'lists:'

-- Return the lock duration of a job, with the grace of its worker (policy.lua).
local function silence_of(q, run, opts, consumer)
  local own, grace = G.match(opts, '"lockDuration":%s*(%d+)'), G.stalled_policy.grace(q, run, consumer)
  own = tonumber(own)
  if own and own >= SHORTEST_LOCK_MS and own <= G.DAY_MS then return own + grace end
  return G.lock_of_worker(q, run, consumer) + grace
end

-- A Node peer's heartbeat is a time of its own clock. It is alive as long as that time changes: store the value and
-- when it was seen, and decide at the next check.
local function foreign_alive(q, now, id, last_active, lock)
  local seen = redis.call('HGET', q.stall_watch, id)
  local value, at = G.match(seen, '^(.-)|(%d+)$')
  if value == (last_active or '') and tonumber(at) <= now then return now - tonumber(at) < lock end
  redis.call('HSET', q.stall_watch, id, (last_active or '') .. '|' .. G.int(now))
  return true
end

-- consumer: the worker that had the job. listed: how many jobs without a stream entry it lost.
local function recover(q, run, id, entry, h, consumer, listed, lock)
  G.recover_job(q, run, id, entry, h, G.suspects.lost_together(q, run, consumer, listed, lock), consumer)
end

local function read(q, id)
  local kind = redis.call('TYPE', q.J .. id).ok
  if kind ~= 'hash' then return nil end
  local h = G.job_of(q, id)
  return h.state and h or nil
end

-- Return the record of a job that was read from the stream and not activated: it goes back there, or to its key.
local function as_read(h)
  return { name = h.name, groupKey = h.groupKey, orderingSeq = h.orderingSeq, slot = h.slot, state = h.state,
    fairKey = h.fairKey, priority = h.fairKey and h.priority }
end

local function check_entry(q, run, entry, consumer, idle)
  local id = G.job_at(q, entry)
  local h = id and read(q, id)
  if not h or h.state == 'completed' or h.state == 'failed' then
    G.ack_entries(q, { entry })
    return
  end
  if G.leases.is_leased(q, run, id, entry, h) then return end
  local lock = silence_of(q, run, h.opts, consumer)
  if idle < lock then return end
  local foreign = G.is_foreign(consumer)
  if h.state == 'active' then
    if foreign and foreign_alive(q, run.now, id, h.lastActive, lock) then return end
    recover(q, run, id, entry, h, consumer, 0, lock)
  elseif h.state == 'waiting' then
    -- Read by a worker that died (or hangs) before it activated the job: nothing has run yet.
    if foreign and foreign_alive(q, run.now, id, h.lastActive, lock) then return end
    G.return_stalled(q, run, id, as_read(h))
    redis.call('HDEL', q.stall_watch, id)
    G.ack_entries(q, { entry })
    run.recovered[#run.recovered + 1] = id
  end
end

local function check_pending(q, run, cursor)
  local from = G.after(cursor)
  return G.each_idle(q, G.GROUP, math.min(run.lock, SHORTEST_LOCK_MS), from, PAGE, function(p)
    check_entry(q, run, p[PENDING_ENTRY.id], p[PENDING_ENTRY.consumer], p[PENDING_ENTRY.idle])
  end)
end

-- A heartbeat in the future is invalid and would keep a job from being recovered: set it to now.
local function repair_heartbeats(q, now)
  local found = redis.call('ZRANGEBYSCORE', q.list_heartbeats, '(' .. G.int(now), '+inf', 'LIMIT', 0, WATCH_SAMPLE)
  for _, id in ipairs(found) do
    if G.state_of(q, id) == 'active' then
      redis.call('ZADD', q.list_heartbeats, G.int(now), id)
      G.set(q, id, 'lastActive', G.int(now))
    else
      redis.call('ZREM', q.list_heartbeats, id)
    end
  end
end

-- found: ids and heartbeats, flat. Return the worker of each, and how many jobs of each worker have been silent for
-- half a lock.
local function owners_of(q, run, found)
  local owner, silent = {}, {}
  for i = 1, #found, 2 do
    local name = G.pcall('HGET', q.J .. found[i], 'takenBy')
    name = type(name) == 'string' and name or ''
    owner[i] = name
    if run.now - tonumber(found[i + 1]) >= G.lock_of_worker(q, run, name) / 2 then
      silent[name] = (silent[name] or 0) + 1
    end
  end
  return owner, silent
end

-- Return nil if the job is not leased, else whether it still is (1 or 0).
local function leases_left(q, run, id, h)
  if not h or not G.leases.is_leased(q, run, id, '', h) then return nil end
  return redis.call('ZSCORE', q.list_heartbeats, id) and 1 or 0
end

-- A worker of ours that activates or renews such a job writes the same time to its score and its `lastActive`. If they
-- differ, a Node peer has fetched the job since, and recovers it itself. rank: where to continue in the set; return the
-- rank of the next page, nil at the end.
local function check_lists(q, run, rank)
  if rank == 0 then repair_heartbeats(q, run.now) end
  local left, found = 0, redis.call('ZRANGE', q.list_heartbeats, rank, rank + PAGE - 1, 'WITHSCORES')
  for i = #found, 2, -2 do
    if tonumber(found[i]) > run.now - SHORTEST_LOCK_MS then found[i], found[i - 1] = nil, nil end
  end
  local owner, silent = owners_of(q, run, found)
  for i = 1, #found, 2 do
    local id, beat = found[i], tonumber(found[i + 1])
    local h = read(q, id)
    local leased = leases_left(q, run, id, h)
    if leased then
      left = left + leased
    elseif not h or h.state ~= 'active' or tonumber(h.lastActive) ~= beat then
      redis.call('ZREM', q.list_heartbeats, id)
    elseif run.now - beat >= silence_of(q, run, h.opts, owner[i]) then
      recover(q, run, id, '', h, owner[i], silent[owner[i]] or 1, silence_of(q, run, h.opts, owner[i]))
    else
      left = left + 1
    end
  end
  return #found == 2 * PAGE and rank + left or nil
end

-- Forget jobs that ended under their Node worker: a few random ones at a time.
local function sweep_watch(q)
  for _, id in ipairs(G.pcall('SRANDMEMBER', q.list_active_ids, WATCH_SAMPLE)) do
    local state = G.state_of(q, id)
    if not state or G.TERMINAL[state] then G.pcall('SREM', q.list_active_ids, id) end
  end
  for _, id in ipairs(redis.call('HRANDFIELD', q.stall_watch, WATCH_SAMPLE)) do
    local state = G.state_of(q, id)
    if state ~= 'active' and state ~= 'waiting' then redis.call('HDEL', q.stall_watch, id) end
  end
end

-- Delete what dead workers of a group have left: consumers without pending entries (those of Node peers stay), policies
-- and old figures.
G.sweep_after_workers = function(q, run, group)
  for _, c in ipairs((G.consumers(q, group))) do
    local name, pending, idle = c[STREAM_CONSUMER.name], c[STREAM_CONSUMER.pending], c[STREAM_CONSUMER.idle]
    if pending == 0 and idle > CONSUMER_KEPT_MS and not (G.is_foreign(name) or G.is_registered(q, name)) then
      redis.call('XGROUP', 'DELCONSUMER', q.stream, group, name)
    end
  end
  G.stalled_policy.sweep(q, run.now)
  G.trim_metrics(q.metrics_completed, run.now)
  G.trim_metrics(q.metrics_failed, run.now)
end

-- Once per round: cleanup besides the recovery of stalled jobs.
local function sweep(q, run)
  if redis.call('TYPE', q.list_active_ids).ok == 'zset' then G.claim_list_ids(q) end
  sweep_watch(q)
  G.sweep_dedup(q, run.now)
  G.sweep_groups(q, run.now)
  G.flows.sweep_parents(q, run.now)
  G.repair_times(q.leases, run.now + G.DAY_MS, run.now)
  G.leases.recover_expired(q, run, PAGE)
  for _, id in ipairs(G.recover_popped(q, run.now, run.lock)) do run.recovered[#run.recovered + 1] = id end
  for _, key in ipairs({ q.completed, q.failed, q.waiting_children }) do G.repair_times(key, G.TIME_MAX, run.now) end
  G.fair.repair_some(q)
  G.sweep_after_workers(q, run, G.GROUP)
end

-- Return whether that is enough for one call.
local function has_much_to_sweep(q)
  return redis.call('ZCARD', q.dedup_expiry) + redis.call('HLEN', q.ordering) + redis.call('ZCARD', q.waiting_children)
    + redis.call('ZCARD', q.list_popped) > MUCH
end

-- Return the reply of this call.
local function reply_of(q, run, cursor, is_idle)
  return {
    recovered = run.recovered, failed = run.failed, cursor = cursor, held = is_idle and 0 or 1,
    interval = run.policy.interval or 0, policy = not is_idle and G.failures.has_work(q) and 1 or 0,
  }
end

-- Return whether this process checks now. One that checks more often does not wait for the turn of another to expire: it
-- may have stopped, or have a longer interval. The key holds `<holder>|<end of its turn>`; older versions wrote the holder.
local function takes_turn(key, holder, hold, now)
  local value = redis.call('GET', key)
  local name, till = G.match(value, '^(.*)|(%d+)$')
  if value and (name or value) == holder then return true end
  if value and (not till or tonumber(till) <= now + hold) then return false end
  redis.call('SET', key, holder .. '|' .. G.int(now + hold), 'PX', hold)
  return true
end

G.export('recover_stalled', { 'allow-oom' }, function(q, request)
  local run = { now = G.now(q), lock = request.lock_duration, max_stalled = request.max_stalled, quiet = request.quiet,
    grace = request.grace, recovered = {}, failed = {} }
  local lock_key, holder, interval = q.lock_recover, request.holder, G.stalled_policy.of_queue(q, run).interval
  local hold = interval and math.min(request.hold, math.floor(interval * 0.8)) or request.hold
  if not takes_turn(lock_key, holder, hold, run.now) then return reply_of(q, run, '', true) end
  local cursor = request.cursor
  if cursor == '' then
    sweep(q, run)
    if has_much_to_sweep(q) then return reply_of(q, run, LISTS .. '0') end
  end
  local rank = cursor == '' and '0' or string.match(cursor, '^' .. LISTS .. '(%d+)$')
  if rank then
    local more = check_lists(q, run, tonumber(rank))
    if more then return reply_of(q, run, LISTS .. G.int(more)) end
    cursor = ''
  end
  return reply_of(q, run, check_pending(q, run, cursor))
end)
