-- register_queue: add a queue to a set of the list of queues, which belongs to no queue.
-- KEYS 1 set   ARGV 1 name   -> 1 added, 0 already listed, -1 not permitted (nothing was changed)
-- A function, for the same reason as registry_add. Without the permission for SADD, nothing is denied and logged.
-- Bound: constant.

G.export('register_queue', { 'allow-oom' }, function(key, r)
  if redis.acl_check_cmd and not redis.acl_check_cmd('SADD', key, r.name) then return -1 end
  return redis.call('SADD', key, r.name)
end)
