-- remove_deduplication: delete the entry of a deduplication id.
-- KEYS 1 meta   ARGV 1 deduplication id   -> 1 deleted, 0 no such id
-- Bound: constant.

G.export('remove_deduplication', { 'allow-oom' }, function(q, r)
  redis.call('ZREM', q.dedup_expiry, r.id)
  return redis.call('HDEL', q.dedup, r.id)
end)
