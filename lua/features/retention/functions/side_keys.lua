-- delete_side_keys: delete the keys that jobs own besides their record, of jobs that no longer exist.
-- KEYS 1 meta   ARGV 1 packed ids   -> deleted keys
-- For jobs that were deleted as jobs without such keys just before a peer came. Bound: the ids.

G.export('delete_side_keys', { 'allow-oom' }, function(keys, args)
  local q, deleted = G.queue(keys[1]), 0
  for _, id in ipairs(cmsgpack.unpack(args[1])) do
    if redis.call('EXISTS', q.J .. id) == 0 then deleted = deleted + redis.call('UNLINK', G.satellites(q, id)) end
  end
  return deleted
end)
