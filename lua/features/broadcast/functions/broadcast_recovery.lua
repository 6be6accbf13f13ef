-- Renew the locks of messages and recover messages of stalled workers.
-- broadcast_heartbeat: as `heartbeat`.   KEYS 1 meta   ARGV 1 packed {consumer, info, ttl_ms, messages, group}
-- broadcast_reattach: return messages pending for the consumer that it does not know, after a lost reply.
--   KEYS 1 meta   ARGV 1 packed {consumer, known entries, want, quiet, cursor, group, start}
--   -> packed {now, messages, dropped, cursor}   Bound: a page of 200 entries; call again with the cursor until it is
--   ''. A call that has found `want` messages returns a cursor too; with `want` 0 the cursor is ''.
-- broadcast_recover_stalled: release entries of stalled workers in their old place. One worker at a time runs it.
--   KEYS 1 meta   ARGV 1 packed {holder, hold_ms, lock_ms, max_stalled, quiet, cursor, group, foreign_prefix}
--   -> packed {recovered ids, failed ids, cursor, held}, as `recover_stalled`   Bound: 100 entries
-- broadcast_leave: as `leave`.   KEYS 1 meta   ARGV 1 group, 2 consumer
local S = G.subscriptions

local FORGET_WORKER_MS, CONSUMER_KEPT_MS = 86400000, 3600000
local REATTACH_PAGE, RECOVER_PAGE = 200, 100
local STALLED = 'job stalled more than maxStalledCount'

-- The idle time of an entry is the heartbeat. A trimmed entry is not claimed: the claim would delete it from the group.
local function renew_lock(q, group, consumer, job)
  local rejected = S.check_attempt(q, group, consumer, job[1], job[2], job[3])
  if rejected then return rejected == G.ALREADY and G.STALE or rejected end
  if #redis.call('XRANGE', q.stream, job[2], job[2]) > 0 then
    redis.call('XCLAIM', q.stream, group, consumer, 0, job[2], 'JUSTID')
  end
  return G.OK
end

G.export('broadcast_heartbeat', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local now, statuses = G.now(q), {}
  if r[2] ~= '' then
    redis.call('SET', q.P .. 'w:' .. r[1], r[2], 'PX', r[3])
    redis.call('ZADD', q.workers, G.int(now), r[1])
    G.remove_older(q.workers, now - FORGET_WORKER_MS)
  end
  for i, job in ipairs(r[4]) do statuses[i] = renew_lock(q, r[5], r[1], job) end
  return cmsgpack.pack({ now, statuses })
end)

G.export('broadcast_reattach', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local t, known = S.fetching(G.now(q), r[1], r[6], false, r[7], r[4]), {}
  for _, entry in ipairs(r[2]) do known[entry] = true end
  local from = r[5] == '' and '-' or '(' .. r[5]
  local pending = redis.pcall('XPENDING', q.stream, t.group, from, '+', REATTACH_PAGE, t.consumer)
  if pending.err then pending = {} end
  local full, last = false, r[5]
  for _, p in ipairs(pending) do
    full = #t.jobs >= r[3]
    if full then break end
    if not known[p[1]] then S.claim_entry(q, t, p[1], p[4]) end
    last = p[1]
  end
  S.ack(q, t.group, t.acked, t.own)
  local cursor = (full or #pending == REATTACH_PAGE) and r[3] > 0 and last or ''
  return cmsgpack.pack({ t.now, t.jobs, t.dropped, cursor })
end)

local function is_registered(q, consumer) return redis.call('EXISTS', q.P .. 'w:' .. consumer) == 1 end

local function recover(q, run, id, entry, alone, deliveries)
  local key = S.record_key(q, id, run.group)
  local stalls = G.bump(key, 'stalled')
  S.write_record(q, id, run.group, 0, 'stalled', stalls)
  if stalls > run.max_stalled then
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

-- p: {entry, consumer, idle ms, deliveries}
local function check_pending(q, run, p)
  local entry, consumer = p[1], p[2]
  if consumer == S.RELEASED_CONSUMER then return end
  local foreign = string.sub(consumer, 1, #run.foreign) == run.foreign
  -- A Node peer does not renew its entries; it is alive as long as it is registered.
  if foreign and is_registered(q, consumer) then return end
  if p[3] < G.lock_of_worker(q, run, consumer) then return end
  local found = redis.call('XRANGE', q.stream, entry, entry)[1]
  local id, _, only_for
  if found then id, _, only_for = S.parse(found[2]) end
  if id and redis.call('EXISTS', q.J .. id) == 1 then return recover(q, run, id, entry, only_for ~= nil, p[4]) end
  -- Trimmed while pending. A worker that is alive may still finish it.
  if not found and is_registered(q, consumer) then return end
  redis.call('XACK', q.stream, run.group, entry)
  S.report_trimmed(q, run.group, id, entry)
end

local function sweep_consumers(q, run)
  for _, c in ipairs((G.consumers(q, run.group))) do
    local name, pending, idle = c[2], c[4], c[6]
    local foreign = string.sub(name, 1, #run.foreign) == run.foreign
    if pending == 0 and idle > CONSUMER_KEPT_MS and not foreign and not is_registered(q, name) then
      redis.call('XGROUP', 'DELCONSUMER', q.stream, run.group, name)
    end
  end
end

G.export('broadcast_recover_stalled', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local run = { now = G.now(q), lock = r[3], max_stalled = r[4], quiet = r[5], group = r[7], foreign = r[8],
    recovered = {}, failed = {} }
  local lock_key = q.P .. 'lock:recover:' .. run.group
  if redis.call('GET', lock_key) ~= r[1] and not redis.call('SET', lock_key, r[1], 'NX', 'PX', r[2]) then
    return cmsgpack.pack({ {}, {}, '', 0 })
  end
  if r[6] == '' then
    sweep_consumers(q, run)
    G.trim_metrics(q.metrics_completed, run.now)
    G.trim_metrics(q.metrics_failed, run.now)
  end
  local from = r[6] == '' and '-' or '(' .. r[6]
  local cursor = G.each_idle(q, run.group, run.lock, from, RECOVER_PAGE, function(p) check_pending(q, run, p) end)
  if #run.recovered > 0 then G.wake(q, 1) end
  return cmsgpack.pack({ run.recovered, run.failed, cursor, 1 })
end)

G.export('broadcast_leave', { 'allow-oom' }, function(keys, args)
  local q, group, consumer = G.queue(keys[1]), args[1], args[2]
  redis.call('UNLINK', q.P .. 'w:' .. consumer)
  redis.call('ZREM', q.workers, consumer)
  local pending = redis.pcall('XPENDING', q.stream, group, '-', '+', 1, consumer)
  if not pending.err and #pending > 0 then return 0 end
  redis.pcall('XGROUP', 'DELCONSUMER', q.stream, group, consumer)
  return 1
end)
