-- Durable adds: evidence that an add is part of this node's data.

local MARK_MS = 600000

-- Write the mark of one durable add, after its jobs. Replication and append-only file keep the order of writes: a node
-- that has the mark has the jobs, or had them. A mark that no client confirms expires.
G.mark_durable = function(q, mark)
  redis.call('SET', q.P .. 'durable:' .. mark, '1', 'PX', MARK_MS)
end
