-- delete_layout: make a partitioned queue a queue without partitions, before these are deleted. Clients with its layout are
-- refused from then on.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {before, epoch}   -> 1; 0 = the queue has another layout, nothing was changed
--   before: text of the present layout   epoch: number of the deletion, larger than that of the layout: layouts up to it are
--   refused. The text of the layout is kept, without a time to live, until end_deletion: it names the partitions.
-- end_deletion: note that the further partitions of a deleted queue are deleted.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed epoch   -> 1; 0 = another deletion is under way, or none
--   epoch: as for delete_layout
-- Bound: constant.

local M = G.moving

G.export('delete_layout', { 'allow-oom' }, G.for_operators(function(q, r)
  if redis.call('HGET', q.meta, 'partitions') ~= r.before then return 0 end
  redis.call('HSET', q.deleted_layout, 'layout', r.before)
  redis.call('PERSIST', q.deleted_layout)
  M.note_deleted(q, r.epoch)
  redis.call('HDEL', q.meta, 'partitions', M.FIELD)
  return 1
end))

G.export('end_deletion', { 'allow-oom' }, G.for_operators(function(q, r)
  if M.deleted(q) ~= r.epoch or not M.is_being_deleted(q) then return 0 end
  redis.call('HDEL', q.deleted_layout, 'layout')
  M.note_deleted(q, r.epoch)
  return 1
end))
