-- store_vector: write the embedding of a job, as a field of its record that a search index reads.
-- KEYS 1 meta   ARGV 1 packed {id, field, bytes, fence, processed_on}   -> status (0 ok, 2 gone, 3 stale)
-- fence 0 = not from a worker. A deleted job is not recreated. The client ensures that `field` is not one of ours.

local NO_END = {}

G.export('store_vector', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local key = q.J .. r[1]
  local h = redis.call('HMGET', key, 'state', 'fence', 'processedOn')
  if not h[1] then return G.GONE end
  if r[4] > 0 then
    local rejected = G.check_attempt(h, r[4], r[5], NO_END)
    if rejected then return rejected end
  end
  redis.call('HSET', key, r[2], r[3])
  return G.OK
end)
