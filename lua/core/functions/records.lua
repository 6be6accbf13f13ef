-- records: return fields of the given jobs.
-- KEYS 1 meta   ARGV 1 packed {ids, fields}   -> packed rows {id, values}; a missing job has no row
-- Bound: the ids given.

G.export('records', { 'no-writes' }, function(q, r)
  local rows = {}
  for _, id in ipairs(r.ids) do
    local values = G.pcall('HMGET', q.J .. id, unpack(r.fields))
    if not values.err and G.exists(q, id) then
      rows[#rows + 1] = G.new.record({ id = id, values = values })
    end
  end
  return rows
end)
