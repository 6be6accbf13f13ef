-- Renew the locks of messages and recover messages of stalled workers.
-- broadcast_heartbeat: as `heartbeat`.   KEYS 1 meta   ARGV 1 packed {consumer, info, ttl_ms, messages, group}
-- broadcast_reattach: return messages pending for the consumer that it does not know, after a lost reply.
--   KEYS 1 meta   ARGV 1 packed {consumer, known entries, want, quiet, cursor, group, start}
--   -> packed {now, messages, dropped, cursor}   Bound: a page of 200 entries; call again with the cursor until it is
--   ''. A call that has found `want` messages returns a cursor too; with `want` 0 the cursor is ''.
-- broadcast_recover_stalled: release entries of stalled workers in their old place. One worker at a time runs it.
--   KEYS 1 meta   ARGV 1 packed {holder, hold_ms, lock_ms, max_stalled, quiet, cursor, group, foreign_prefix, grace}
--   max_stalled, grace: for messages of workers that set none (policy.lua)
--   -> packed {recovered ids, failed ids, cursor, held}, as `recover_stalled`   Bound: 100 entries
-- broadcast_leave: as `leave`.   KEYS 1 meta   ARGV 1 group, 2 consumer
local LEASE = G.rows.lease
local PENDING_ENTRY = G.rows.pending_entry
local STREAM_ENTRY = G.rows.stream_entry
local STREAM_CONSUMER = G.rows.stream_consumer
local S = G.subscriptions

local FORGET_WORKER_MS, CONSUMER_KEPT_MS = 86400000, 3600000
local REATTACH_PAGE, RECOVER_PAGE = 200, 100
local STALLED = 'job stalled more than maxStalledCount'

-- The idle time of an entry is the heartbeat. A trimmed entry is not claimed: the claim would delete it from the group.
local function renew_lock(q, group, consumer, job)
  local entry = job[LEASE.entry]
  local rejected = S.check_attempt(q, group, consumer, job[LEASE.id], entry, job[LEASE.fence])
  if rejected then return rejected == G.ALREADY and G.STALE or rejected end
  if #redis.call('XRANGE', q.stream, entry, entry) > 0 then
    redis.call('XCLAIM', q.stream, group, consumer, 0, entry, 'JUSTID')
  end
  return G.OK
end

G.export('broadcast_heartbeat', { 'allow-oom' }, function(q, r)
  local now, statuses = G.now(q), {}
  if r.info ~= '' then
    redis.call('SET', q.P .. 'w:' .. r.consumer, r.info, 'PX', r.ttl)
    redis.call('ZADD', q.workers, G.int(now), r.consumer)
    G.remove_older(q.workers, now - FORGET_WORKER_MS)
    G.stalled_policy.register(q, r.consumer, r.info, G.int(now))
  end
  for i, job in ipairs(r.jobs) do statuses[i] = renew_lock(q, r.group, r.consumer, job) end
  return G.replies.broadcast_heartbeat({ now = now, statuses = statuses })
end)

G.export('broadcast_reattach', { 'allow-oom' }, function(q, r)
  local t, known = S.fetching(G.now(q), r.consumer, r.group, false, r.start, r.quiet), {}
  for _, entry in ipairs(r.known) do known[entry] = true end
  local from = r.cursor == '' and '-' or '(' .. r.cursor
  local pending = G.pcall('XPENDING', q.stream, t.group, from, '+', REATTACH_PAGE, t.consumer)
  if pending.err then pending = {} end
  local full, last = false, r.cursor
  for _, p in ipairs(pending) do
    full = #t.jobs >= r.want
    if full then break end
    local entry = p[PENDING_ENTRY.id]
    if not known[entry] then S.claim_entry(q, t, entry, p[PENDING_ENTRY.deliveries]) end
    last = entry
  end
  S.ack(q, t.group, t.acked, t.own)
  local cursor = (full or #pending == REATTACH_PAGE) and r.want > 0 and last or ''
  return G.replies.broadcast_reattach({ now = t.now, jobs = t.jobs, dropped = t.dropped, cursor = cursor })
end)

local function is_registered(q, consumer) return redis.call('EXISTS', q.P .. 'w:' .. consumer) == 1 end

-- p: a row of XPENDING
local function recover(q, run, id, alone, p)
  local key, entry, deliveries = S.record_key(q, id, run.group), p[PENDING_ENTRY.id], p[PENDING_ENTRY.deliveries]
  local stalls = G.bump(key, 'stalled')
  S.write_record(q, id, run.group, 0, 'stalled', stalls)
  if stalls > G.stalled_policy.max_stalled(q, run, p[PENDING_ENTRY.consumer]) then
    G.dead_message(q, run.group, id, 'stalled', STALLED, entry, S.fence(deliveries, alone), S.attempts(q, id, run.group))
    S.write_record(q, id, run.group, 0, 'state', 'failed', 'failedReason', STALLED, 'finishedOn', G.int(run.now))
    S.ack(q, run.group, { entry }, alone and { entry } or {})
    G.emit(q.events, 'failed', id, 'failedReason', STALLED, 'subscription', run.group)
    G.metric(q.metrics_failed, run.now, 1, 0)
    run.failed[#run.failed + 1] = id
    return
  end
  S.release_entry(q, run.group, entry)
  if not run.quiet then G.emit(q.events, 'stalled', id, 'subscription', run.group) end
  run.recovered[#run.recovered + 1] = id
end

-- p: a row of XPENDING
local function check_pending(q, run, p)
  local entry, consumer = p[PENDING_ENTRY.id], p[PENDING_ENTRY.consumer]
  if consumer == S.RELEASED_CONSUMER then return end
  local foreign = string.sub(consumer, 1, #run.foreign) == run.foreign
  -- A Node peer does not renew its entries; it is alive as long as it is registered.
  if foreign and is_registered(q, consumer) then return end
  local limit = G.lock_of_worker(q, run, consumer) + G.stalled_policy.grace(q, run, consumer)
  if p[PENDING_ENTRY.idle] < limit then return end
  local found = G.first(redis.call('XRANGE', q.stream, entry, entry))
  local id, _, only_for
  if found then id, _, only_for = S.parse(found[STREAM_ENTRY.fields]) end
  if id and redis.call('EXISTS', q.J .. id) == 1 then
    return recover(q, run, id, only_for ~= nil, p)
  end
  -- Trimmed while pending. A worker that is alive may still finish it.
  if not found and is_registered(q, consumer) then return end
  redis.call('XACK', q.stream, run.group, entry)
  S.report_trimmed(q, run.group, id, entry)
end

local function sweep_consumers(q, run)
  for _, c in ipairs((G.consumers(q, run.group))) do
    local name, pending, idle = c[STREAM_CONSUMER.name], c[STREAM_CONSUMER.pending], c[STREAM_CONSUMER.idle]
    local foreign = string.sub(name, 1, #run.foreign) == run.foreign
    if pending == 0 and idle > CONSUMER_KEPT_MS and not foreign and not is_registered(q, name) then
      redis.call('XGROUP', 'DELCONSUMER', q.stream, run.group, name)
    end
  end
end

G.export('broadcast_recover_stalled', { 'allow-oom' }, function(q, r)
  local run = { now = G.now(q), lock = r.lock_duration, max_stalled = r.max_stalled, quiet = r.quiet, group = r.group,
    foreign = r.foreign_prefix, grace = r.grace,
    recovered = {}, failed = {} }
  local lock_key = q.P .. 'lock:recover:' .. run.group
  if redis.call('GET', lock_key) ~= r.holder and not redis.call('SET', lock_key, r.holder, 'NX', 'PX', r.hold) then
    return G.replies.broadcast_recover_stalled({ recovered = {}, failed = {}, cursor = '', held = 0 })
  end
  if r.cursor == '' then
    sweep_consumers(q, run)
    G.stalled_policy.sweep(q, run.now)
    G.trim_metrics(q.metrics_completed, run.now)
    G.trim_metrics(q.metrics_failed, run.now)
  end
  local from = r.cursor == '' and '-' or '(' .. r.cursor
  local cursor = G.each_idle(q, run.group, run.lock, from, RECOVER_PAGE, function(p) check_pending(q, run, p) end)
  if #run.recovered > 0 then G.wake(q, 1) end
  return G.replies.broadcast_recover_stalled({
    recovered = run.recovered, failed = run.failed, cursor = cursor, held = 1,
  })
end)

G.export('broadcast_leave', { 'allow-oom' }, function(q, r)
  local group, consumer = r.group, r.consumer
  redis.call('UNLINK', q.P .. 'w:' .. consumer)
  redis.call('ZREM', q.workers, consumer)
  G.stalled_policy.forget(q, consumer)
  local pending = G.pcall('XPENDING', q.stream, group, '-', '+', 1, consumer)
  if not pending.err and #pending > 0 then return 0 end
  G.pcall('XGROUP', 'DELCONSUMER', q.stream, group, consumer)
  return 1
end)
