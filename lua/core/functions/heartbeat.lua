-- heartbeat: register a worker and renew the locks of its jobs.
-- KEYS 1 meta   ARGV 1 packed {consumer, info, ttl_ms, jobs}   -> packed {now, statuses}
-- job: {id, entry, fence, processed_on}   status: 0 locked by this worker, 2 gone, 3 stale, 7 locked but revoked
-- info '' = do not register (a heartbeat between two registrations).
-- Both clocks are renewed: `lastActive` for Node peers, and the entry's idle time (XCLAIM to the same consumer, no
-- delivery counted), so that neither our recovery nor XAUTOCLAIM of a Node peer recovers a job whose worker is alive.
-- Bound: the jobs given.

local REVOKED = 7
local FORGET_WORKER_MS = 86400000
local NO_END = {}

local function renew_lock(q, now_text, consumer, job)
  local id, entry = job[1], job[2]
  local key = q.J .. id
  local h = redis.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'revoked')
  if h.err then return G.GONE end
  local rejected = G.check_attempt(h, job[3], job[4], NO_END)
  if rejected then return rejected end
  redis.call('HSET', key, 'lastActive', now_text)
  if entry == '' then
    redis.call('ZADD', q.list_active_ids, 'XX', now_text, id)
  else
    redis.pcall('XCLAIM', q.stream, G.GROUP, consumer, 0, entry, 'JUSTID')
  end
  return h[4] == '1' and REVOKED or G.OK
end

G.export('heartbeat', { 'allow-oom' }, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local now = G.now(q)
  local now_text, statuses = G.int(now), {}
  if request[2] ~= '' then
    redis.call('SET', q.P .. 'w:' .. request[1], request[2], 'PX', request[3])
    redis.call('ZADD', q.workers, now_text, request[1])
    G.remove_older(q.workers, now - FORGET_WORKER_MS)
  end
  for i, job in ipairs(request[4]) do
    statuses[i] = renew_lock(q, now_text, request[1], job)
  end
  return cmsgpack.pack({ now, statuses })
end)
