-- stream_chunk: append to the stream of chunks that a job writes while it runs (`jstream:<id>`).
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, keep, fields}   -> packed {status, entry id or ''}
-- fields: flat, field and value in turn. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: keep the newest chunks of that number. The stream is deleted with its job. Bound: one chunk.

local NO_END = {}

G.export('stream_chunk', {}, function(q, r)
  local id, keep = r.id, r.keep
  local state, fence, processed_on = unpack(redis.call('HMGET', q.J .. id, 'state', 'fence', 'processedOn'))
  if not state then return G.replies.stream_chunk({ status = G.GONE, entry = '' }) end
  if r.fence > 0 then
    local rejected = G.check_attempt(r.fence, r.processed_on, NO_END, state, fence, processed_on)
    if rejected then return G.replies.stream_chunk({ status = rejected, entry = '' }) end
  end
  local key = q.P .. 'jstream:' .. id
  G.mark_side_keys(q)
  if keep > 0 then
    return G.replies.stream_chunk({
      status = G.OK, entry = redis.call('XADD', key, 'MAXLEN', '=', keep, '*', unpack(r.fields)),
    })
  end
  return G.replies.stream_chunk({ status = G.OK, entry = redis.call('XADD', key, '*', unpack(r.fields)) })
end)
