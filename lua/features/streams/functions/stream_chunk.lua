-- stream_chunk: append to the stream of chunks that a job writes while it runs (`jstream:<id>`).
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, keep, fields}, 2 number of an append of the attempt, or ''
-- -> packed {status, entry id or ''}   status 1: it was made before, as the newest entry with its fields
-- fields: flat, field and value in turn. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: keep the newest chunks of that number. The stream is deleted with its job. Bound: one chunk; of a repetition,
-- LOOKED_AT chunks.

local LOOKED_AT = 64

-- Return the id of the newest entry with these fields, or ''.
local function find(key, fields)
  local last = '+'
  for _ = 1, LOOKED_AT do
    local entry = G.first(redis.call('XREVRANGE', key, last, '-', 'COUNT', 1))
    if not entry then break end
    local id, values = unpack(entry)
    if table.concat(values, '\0') == table.concat(fields, '\0') then return id end
    last = '(' .. id
  end
  return ''
end

G.export('stream_chunk', {}, function(q, r)
  local id, keep = r.id, r.keep
  local rejected = G.reject_call(q, r)
  if rejected then return { status = rejected, entry = '' } end
  local key = q.P .. 'jstream:' .. id
  if G.has_appended(q, id, r.fence, r.number) then
    return { status = G.ALREADY, entry = find(key, r.fields) }
  end
  G.mark_side_keys(q)
  if keep > 0 then
    return {
      status = G.OK, entry = redis.call('XADD', key, 'MAXLEN', '=', keep, '*', unpack(r.fields)),
    }
  end
  return { status = G.OK, entry = redis.call('XADD', key, '*', unpack(r.fields)) }
end)
