-- store_vector: write the embedding of a job, as a field of its record that a search index reads.
-- KEYS 1 meta   ARGV 1 packed {id, field, bytes, fence, processed_on}   -> status (0 ok, 2 gone, 3 stale)
-- fence 0 = not from a worker. A deleted job is not recreated. The client ensures that `field` is not one of ours.

G.export('store_vector', {}, function(q, r)
  local rejected = G.reject_call(q, r)
  if rejected then return rejected end
  G.set(q, r.id, r.field, r.bytes)
  return G.OK
end)
