-- Renew the locks of messages and recover messages of stalled workers.
-- broadcast_heartbeat: as `heartbeat`.   KEYS 1 meta   ARGV 1 packed {consumer, info, ttl_ms, messages, group}
-- broadcast_reattach: return messages pending for the consumer that it does not know, after a lost reply.
--   KEYS 1 meta   ARGV 1 packed {consumer, known entries, want, quiet, cursor, group, start}
--   -> packed {now, messages, dropped, cursor}   Bound: a page of 200 entries; call again with the cursor until it is
--   ''. A call that has found `want` messages returns a cursor too; with `want` 0 the cursor is ''.
-- broadcast_recover_stalled: release entries of stalled workers in their old place. One worker at a time runs it.
--   KEYS 1 meta   ARGV 1 packed {holder, hold_ms, lock_ms, max_stalled, quiet, cursor, group, grace}
--   max_stalled, grace: for messages of workers that set none (policy.lua)
--   -> packed {recovered ids, failed ids, cursor, held}, as `recover_stalled`   Bound: 100 entries
local LEASE = G.rows.lease
local PENDING_ENTRY = G.rows.pending_entry
local STREAM_ENTRY = G.rows.stream_entry
local S = G.subscriptions

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
  G.register_worker(q, now, r)
  for i, job in ipairs(r.jobs) do statuses[i] = renew_lock(q, r.group, r.consumer, job) end
  return { now = now, statuses = statuses }
end)

G.export('broadcast_reattach', { 'allow-oom' }, function(q, r)
  local t, known = S.fetching(G.now(q), r.consumer, r.group, false, r.start, r.quiet), G.positions(r.known)
  local pending = G.pcall('XPENDING', q.stream, t.group, G.after(r.cursor), '+', REATTACH_PAGE, t.consumer)
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
  return { now = t.now, jobs = t.jobs, dropped = t.dropped, cursor = cursor }
end)

-- p: a row of XPENDING
local function recover(q, run, id, alone, p)
  local key, entry, deliveries = S.record_key(q, id, run.group), p[PENDING_ENTRY.id], p[PENDING_ENTRY.deliveries]
  local stalls = G.bump(key, 'stalled')
  S.write_record(q, id, run.group, 0, 'stalled', stalls)
  if stalls > G.stalled_policy.max_stalled(q, run, p[PENDING_ENTRY.consumer]) then
    S.end_failed(q, run.group, id, 'stalled', STALLED, entry, S.fence(deliveries, alone), run.now)
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
  -- A Node peer does not renew its entries; it is alive as long as it is registered.
  if G.is_foreign(consumer) and G.is_registered(q, consumer) then return end
  local limit = G.lock_of_worker(q, run, consumer) + G.stalled_policy.grace(q, run, consumer)
  if p[PENDING_ENTRY.idle] < limit then return end
  local found = G.first(redis.call('XRANGE', q.stream, entry, entry))
  local id, _, only_for
  if found then id, _, only_for = S.parse(found[STREAM_ENTRY.fields]) end
  if id and G.exists(q, id) then
    return recover(q, run, id, only_for ~= nil, p)
  end
  -- Trimmed while pending. A worker that is alive may still finish it.
  if not found and G.is_registered(q, consumer) then return end
  redis.call('XACK', q.stream, run.group, entry)
  S.report_trimmed(q, run.group, id, entry)
end

G.export('broadcast_recover_stalled', { 'allow-oom' }, function(q, r)
  local run = { now = G.now(q), lock = r.lock_duration, max_stalled = r.max_stalled, quiet = r.quiet, group = r.group,
    grace = r.grace, recovered = {}, failed = {} }
  local lock_key = q.P .. 'lock:recover:' .. run.group
  if not G.holds(lock_key, r.holder, r.hold) then
    return { recovered = {}, failed = {}, cursor = '', held = 0 }
  end
  if r.cursor == '' then
    G.sweep_after_workers(q, run, run.group)
  end
  local cursor = G.each_idle(q, run.group, run.lock, G.after(r.cursor), RECOVER_PAGE, function(p) check_pending(q, run, p) end)
  if #run.recovered > 0 then G.wake(q, 1) end
  return {
    recovered = run.recovered, failed = run.failed, cursor = cursor, held = 1,
  }
end)
