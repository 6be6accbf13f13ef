-- confirm_durable: check that durable adds are part of this node's data.
-- KEYS 1 meta   ARGV 1 packed {marks, keep, cluster}   -> packed {found, node}
-- marks: of `add`. keep: seconds for which the marks stay, so that the check can be repeated. found: 1 or 0 per mark.
-- node: id of this node if `cluster` is true, otherwise ''.
-- The call writes each mark that it finds. WAITAOF or WAIT behind it on the same connection therefore waits for a write
-- that follows the adds; without one, it would reply at once.
-- Bound: 1,000 marks.

local MARK_MS = 600000

-- Write the mark of one durable add, after its jobs. Replication and append-only file keep the order of writes: a node
-- that has the mark has the jobs, or had them. A mark that no client confirms expires.
G.mark_durable = function(q, mark)
  redis.call('SET', q.P .. 'durable:' .. mark, '1', 'PX', MARK_MS)
end

local MARKS_MAX = 1000

G.export('confirm_durable', { 'allow-oom' }, function(q, r)
  if #r.marks > MARKS_MAX then error('ERR more than ' .. MARKS_MAX .. ' marks', 0) end
  local found, keep = {}, G.int(r.keep)
  for i = 1, #r.marks do found[i] = redis.call('EXPIRE', q.P .. 'durable:' .. r.marks[i], keep) end
  local node = r.cluster and redis.call('CLUSTER', 'MYID') or ''
  return { found = found, node = node }
end)
