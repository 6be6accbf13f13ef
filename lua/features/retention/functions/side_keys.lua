-- delete_side_keys: delete the keys that jobs own besides their record, of jobs that no longer exist.
-- KEYS 1 meta   ARGV 1 packed ids   -> packed ids of the jobs that still exist
-- For jobs that were deleted as jobs without such keys just before a peer came. Bound: the ids.

G.export('delete_side_keys', { 'allow-oom' }, function(q, r)
  local left = {}
  for _, id in ipairs(r.ids) do
    if redis.call('EXISTS', q.J .. id) == 0 then
      redis.call('UNLINK', G.satellites(q, id))
    else
      left[#left + 1] = id
    end
  end
  return cmsgpack.pack(left)
end)
