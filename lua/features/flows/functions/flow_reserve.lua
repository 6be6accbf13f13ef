-- flow_reserve: reserve ids for the jobs of a flow that takes several calls to add.
-- KEYS 1 meta   ARGV 1 packed {count, custom ids, orderings, token, layout}
-- -> packed {ids, existing custom id or false, too costly}
--   too costly: the number of the ordering (as in `add`) whose bucket holds less than it costs, or 0
--   layout: number of the layout of the queue's partitions, 0 = it has none, false = not checked. Of a partition, the mark
--   of the flow is written: it is kept while the flow is added, even if it gets no other jobs (_api/partitioned_changes.py)
-- errors: ERR layout (the partition has another layout)
-- Bound: the ids and orderings given.
local A = G.adding

local JOB = G.rows.new_job
local RESERVED_MS = 86400000 -- a flow is committed within a day

A.too_costly_ordering = function(q, ordering, now_text)
  local row = {}
  row[JOB.ordering] = ordering
  return A.too_costly(q, A.group_of(row, now_text))
end

G.export('flow_reserve', {}, function(q, r)
  local outdated = G.moving.check(q, r.layout)
  if outdated then return outdated end
  local rows, now, taken = {}, G.now(q), false
  local now_text = G.int(now)
  for _, id in ipairs(r.ids) do
    if redis.call('EXISTS', q.J .. id) == 1 then taken = id end
  end
  for i, ordering in ipairs(r.orderings) do
    if A.too_costly_ordering(q, ordering, now_text) then
      return G.replies.flow_reserve({ ids = {}, taken = taken, costly = i })
    end
  end
  if taken then return G.replies.flow_reserve({ ids = {}, taken = taken, costly = 0 }) end
  for _, id in ipairs(r.ids) do G.advance_counter(q, id) end
  if r.layout and r.layout > 0 and redis.call('SET', q.P .. 'flow-mark:' .. r.token, '0', 'NX', 'PX', RESERVED_MS) then
    G.record_temporary(q, 'flow-mark:' .. r.token, now, RESERVED_MS)
  end
  for i = 1, r.count do rows[i] = {} end
  local ids = A.issue_ids(q, rows) or {}
  for i = #ids + 1, r.count do ids[i] = A.next_free_id(q) end
  return G.replies.flow_reserve({ ids = ids, taken = false, costly = 0 })
end)
