-- clean: delete completed or failed jobs that ended long enough ago, oldest first, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {state, grace ms, cutoff, batch, want, total}   -> packed {cutoff, ids, more}
-- cutoff: -1 at first, then the value of the previous reply (epoch ms)   want: how many more are requested
-- total: deleted by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- A member of the index whose job is in another state is removed from the index; the job stays. Bound: `batch` jobs per
-- call.

local INDEX = { completed = 'completed', failed = 'failed' }

G.export('clean', { 'allow-oom' }, G.for_operators(function(q, r)
  local state, cutoff, batch, want = r.state, r.cutoff, r.batch, r.want
  if not INDEX[state] then return redis.error_reply('ERR no index of the state ' .. tostring(state)) end
  local zset = q[INDEX[state]]
  if cutoff < 0 then cutoff = math.max(0, G.now(q) - r.grace) end
  local limit = math.min(batch, want)
  local found = redis.call('ZRANGEBYSCORE', zset, '-inf', G.int(cutoff), 'LIMIT', 0, limit)
  local ids = {}
  for _, id in ipairs(found) do
    local h = G.pcall('HMGET', q.J .. id, 'state', 'parentId', 'parentIds')
    local is_in, parent, parents = unpack(h)
    if not h.err and (not is_in or is_in == state) then ids[#ids + 1] = id end
    -- Its parents are already notified, unless a peer failed it.
    if state == 'failed' and is_in == state and (parent or parents) then
      G.flows.child_ended(q, id, G.flows.REMOVED, 'failed', G.now(q))
    end
  end
  G.results.before_delete(q, ids)
  G.purge(q, ids)
  local removed = 0
  if #found > 0 then removed = redis.call('ZREM', zset, unpack(found)) end
  local more = removed == limit and #ids < want
  if not more and r.total + #ids > 0 then G.emit(q.events, 'cleaned', G.int(r.total + #ids)) end
  return G.replies.clean({ cutoff = cutoff, ids = ids, more = more })
end))
