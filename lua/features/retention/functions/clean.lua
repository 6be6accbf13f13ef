-- clean: delete completed or failed jobs that ended long enough ago, oldest first, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {state, grace ms, cutoff, batch, want, total}   -> packed {cutoff, ids, more}
-- cutoff: -1 at first, then the value of the previous reply (epoch ms)   want: how many more are requested
-- total: deleted by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- A member of the index whose job is in another state is removed from the index; the job stays. Bound: `batch` jobs per
-- call.

local INDEX = { completed = 'completed', failed = 'failed' }

G.export('clean', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local state, cutoff, batch, want = r[1], r[3], r[4], r[5]
  if not INDEX[state] then return redis.error_reply('ERR no index of the state ' .. tostring(state)) end
  local zset = q[INDEX[state]]
  if cutoff < 0 then cutoff = math.max(0, G.now(q) - r[2]) end
  local limit = math.min(batch, want)
  local found = redis.call('ZRANGEBYSCORE', zset, '-inf', G.int(cutoff), 'LIMIT', 0, limit)
  local ids = {}
  for _, id in ipairs(found) do
    local h = redis.pcall('HMGET', q.J .. id, 'state', 'parentId', 'parentIds')
    if not h.err and (not h[1] or h[1] == state) then ids[#ids + 1] = id end
    -- Its parents are already notified, unless a peer failed it.
    if state == 'failed' and h[1] == state and (h[2] or h[3]) then
      G.flows.child_ended(q, id, G.flows.REMOVED, 'failed', G.now(q))
    end
  end
  G.purge(q, ids)
  if #found > 0 then redis.call('ZREM', zset, unpack(found)) end
  local more = #found == limit and #ids < want
  if not more and r[6] + #ids > 0 then G.emit(q.events, 'cleaned', G.int(r[6] + #ids)) end
  return cmsgpack.pack({ cutoff, ids, more })
end)
