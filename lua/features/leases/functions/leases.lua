-- extend_leases, release_leases, end_leases: renew and release jobs that were fetched without a worker, and end those
-- whose time is over. `exchange` fetches and reports them.
-- extend_leases:   KEYS 1 meta   ARGV 1 packed {duration ms, leases}   -> packed {now, statuses, deadlines}
--   leases: {id, entry, fence, processed_on, limit} each   status: 0 extended, 2 gone, 3 lost, 7 extended but revoked
--   deadlines: epoch ms, at most the end of the job's timeout, and its lockDuration from now; 0 if the lease is lost
--   Bound: LEASES_MAX leases.
-- release_leases:  KEYS 1 meta   ARGV 1 packed {owner, cursor, quiet}   -> packed {released, cursor}
--   Release all leases of an owner: read PAGE leases of the queue behind the cursor ('' = from the first), and release
--   those of the owner; call again with the cursor until it is ''.
-- end_leases:      KEYS 1 meta   ARGV 1 packed {quiet}   -> packed {recovered ids, failed ids, wait, outbox_pending}
--   End up to ENDED_MAX leases that are over, the oldest first, as `exchange` does before it fetches.
--   wait: ms until the next lease is over, -1 = none is left   outbox_pending: 1 = there are entries for other queues

local L, LEASED = G.leases, G.rows.leased
local KINDS = G.report_kinds
local LEASES_MAX, PAGE, ENDED_MAX = 1000, 500, 100

G.export('extend_leases', { 'allow-oom' }, G.for_workers(function(q, r)
  if #r.leases > LEASES_MAX then error('too many leases: ' .. #r.leases) end
  local now, statuses, deadlines = G.now(q), {}, {}
  for i, lease in ipairs(r.leases) do
    statuses[i], deadlines[i] = L.extend(q, now, lease[LEASED.id], lease[LEASED.fence], lease[LEASED.processed_on],
      r.duration)
  end
  return { now = now, statuses = statuses, deadlines = deadlines }
end))

-- Return the rows that release the leases of `owner` among `ids`, and the ids that are not leased any more.
local function rows_of(q, owner, ids)
  local rows, stale = {}, {}
  for _, id in ipairs(ids) do
    local lease = L.of(q, id)
    if not lease then
      stale[#stale + 1] = id
    elseif lease.owner == owner then
      rows[#rows + 1] = { KINDS.released, id, lease.entry, lease.fence, lease.processed_on }
      stale[#stale + 1] = id
    end
  end
  return rows, stale
end

local function release(q, r)
  local found, cursor = G.set_slice(q.leases, r.cursor, PAGE, '-inf', '+inf')
  local rows, ended = rows_of(q, r.owner, G.members_of(found))
  local fetching = G.fetching(q, G.now(q), L.CONSUMER, r.quiet)
  fetching.settings = G.settings(q)
  q.fetching = fetching
  G.finish(q, fetching, rows, r.quiet, true)
  if #ended > 0 then redis.call('ZREM', q.leases, unpack(ended)) end
  G.promote_groups(q, fetching)
  return { released = #rows, cursor = cursor }
end

G.export('release_leases', { 'allow-oom' }, G.for_workers(function(q, r)
  q.defer = true
  local ok, reply = pcall(release, q, r)
  G.groups.flush(q)
  if not ok then error(reply, 0) end
  return reply
end))

G.export('end_leases', { 'allow-oom' }, function(q, r)
  local run = { now = G.now(q), max_stalled = L.MAX_STALLED, quiet = r.quiet, recovered = {}, failed = {} }
  L.recover_expired(q, run, ENDED_MAX)
  return {
    recovered = run.recovered, failed = run.failed, wait = G.until_first(q.leases, run.now),
    outbox_pending = G.outbox_pending(q) and 1 or 0,
  }
end)
