-- records: return fields of the given jobs.
-- KEYS 1 meta   ARGV 1 packed {ids, fields}   -> packed rows {id, values}; a missing job has no row
-- Bound: the ids given.

G.export('records', { 'no-writes' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows = {}
  for _, id in ipairs(r[1]) do
    local values = redis.pcall('HMGET', q.J .. id, unpack(r[2]))
    if not values.err and redis.call('EXISTS', q.J .. id) == 1 then rows[#rows + 1] = { id, values } end
  end
  return cmsgpack.pack(rows)
end)
