-- store_vector: write the embedding of a job, as a field of its record that a search index reads.
-- KEYS 1 meta   ARGV 1 packed {id, field, bytes, fence, processed_on}   -> status (0 ok, 2 gone, 3 stale)
-- fence 0 = not from a worker. A deleted job is not recreated. The client ensures that `field` is not one of ours.

local NO_END = {}

G.export('store_vector', {}, function(q, r)
  local key = q.J .. r.id
  local state, fence, processed_on = unpack(redis.call('HMGET', key, 'state', 'fence', 'processedOn'))
  if not state then return G.GONE end
  if r.fence > 0 then
    local rejected = G.check_attempt(r.fence, r.processed_on, NO_END, state, fence, processed_on)
    if rejected then return rejected end
  end
  redis.call('HSET', key, r.field, r.bytes)
  return G.OK
end)
