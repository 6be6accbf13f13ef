-- stream_chunk: append to the stream of chunks that a job writes while it runs (`jstream:<id>`).
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, keep, fields}   -> packed {status, entry id or ''}
-- fields: flat, field and value in turn. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: keep the newest chunks of that number. The stream is deleted with its job. Bound: one chunk.

local NO_END = {}

G.export('stream_chunk', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local id, keep = r[1], r[4]
  local h = redis.call('HMGET', q.J .. id, 'state', 'fence', 'processedOn')
  if not h[1] then return cmsgpack.pack({ G.GONE, '' }) end
  if r[2] > 0 then
    local rejected = G.check_attempt(h, r[2], r[3], NO_END)
    if rejected then return cmsgpack.pack({ rejected, '' }) end
  end
  local key = q.P .. 'jstream:' .. id
  G.mark_side_keys(q)
  if keep > 0 then return cmsgpack.pack({ G.OK, redis.call('XADD', key, 'MAXLEN', '=', keep, '*', unpack(r[5])) }) end
  return cmsgpack.pack({ G.OK, redis.call('XADD', key, '*', unpack(r[5])) })
end)
