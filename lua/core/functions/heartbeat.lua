-- heartbeat: register a worker and renew the locks of its jobs.
-- KEYS 1 meta   ARGV 1 packed {consumer, info, ttl_ms, jobs}   -> packed {now, statuses, commands, layout}
-- job: {id, entry, fence, processed_on}   status: 0 locked by this worker, 2 gone, 3 stale, 7 locked but revoked
-- info '' = do not register (a heartbeat between two registrations). commands: texts of control_workers
-- layout: number of the layout of the queue's partitions, 0 = it has none
-- Both clocks are renewed: `lastActive` for Node peers, and the entry's idle time (XCLAIM to the same consumer, no
-- delivery counted), so that neither our recovery nor XAUTOCLAIM of a Node peer recovers a job whose worker is alive.
-- Bound: the jobs given.

local LEASE = G.rows.lease
local REVOKED = G.REVOKED
local FORGET_WORKER_MS = 86400000
local NO_END = {}

local function renew_lock(q, now_text, consumer, job)
  local id, entry = job[LEASE.id], job[LEASE.entry]
  local key = q.J .. id
  local rejected, revoked = G.read_attempt(key, job[LEASE.fence], job[LEASE.processed_on], NO_END, 'revoked')
  if rejected then return rejected end
  redis.call('HSET', key, 'lastActive', now_text)
  if entry == '' then
    redis.call('ZADD', q.list_heartbeats, 'XX', now_text, id)
  else
    G.pcall('XCLAIM', q.stream, G.GROUP, consumer, 0, entry, 'JUSTID')
  end
  return revoked == '1' and REVOKED or G.OK
end

-- Register the worker of a heartbeat, if the call has its registration. Return the commands of control_workers.
G.register_worker = function(q, now, r)
  G.follow_clock(q, now)
  if r.info == '' then return {} end
  redis.call('ZADD', q.workers, G.int(now), r.consumer)
  G.remove_older(q.workers, now - FORGET_WORKER_MS)
  G.stalled_policy.register(q, r.consumer, r.info, G.int(now))
  return G.control.register(q, r.consumer, r.info, r.ttl)
end

G.export('heartbeat', { 'allow-oom' }, function(q, request)
  local now = G.now(q)
  local now_text, statuses, commands = G.int(now), {}, G.register_worker(q, now, request)
  for i, job in ipairs(request.jobs) do
    statuses[i] = renew_lock(q, now_text, request.consumer, job)
  end
  return { now = now, statuses = statuses, commands = commands, layout = G.layout.number(q) }
end)
