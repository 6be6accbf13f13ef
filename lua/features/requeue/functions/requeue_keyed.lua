-- requeue_keyed: requeue jobs of a partition that have an ordering key or a deduplication id, whose jobs must be in one
-- partition. The client has found that no other partition of the key has jobs of it (docs/design/partitions.md, "Requeues").
-- KEYS 1 meta   ARGV 1 packed {epoch, rows, completed} -> packed list of replies as of requeue_job, or 'moved': a call has
-- found that the key has no jobs in this partition any more, so others may have some.
-- epoch: number of the layout   row: {id, ordering_home, unique_home, retries}: whether this is the present partition of the
-- ordering key, and of the deduplication id; retries: number of automatic requeues, false = not automatic
-- completed: true = completed jobs too
-- errors: ERR layout (the partition has another one; nothing was changed)
-- Bound: the rows given.

local HOMED = G.rows.homed_job

G.export('requeue_keyed', { 'allow-oom' }, G.for_operators(function(q, r)
  local refused = G.moving.check(q, r.epoch)
  if refused then return refused end
  local replies = {}
  for i = 1, #r.rows do
    local row = r.rows[i]
    local ok, reply = G.attempt(G.requeue_one, q, row[HOMED.id], r.completed, row)
    replies[i] = ok and reply or 'gone'
    if reply == 'ok' and row[HOMED.retries] then
      redis.call('HSET', q.J .. row[HOMED.id], 'autoRetries', G.int(row[HOMED.retries]))
      redis.call('ZREM', q.failure_retries, row[HOMED.id])
    end
  end
  return cmsgpack.pack(replies)
end))
