-- flow_reserve: reserve ids for the jobs of a flow that takes several calls to add.
-- KEYS 1 meta   ARGV 1 packed {count, custom ids, orderings}   -> packed {ids, existing custom id or false, too costly}
--   too costly: the number of the ordering (as in `add`) whose bucket holds less than it costs, or 0
-- Bound: the ids and orderings given.
local A = G.adding

local JOB = G.rows.new_job

A.too_costly_ordering = function(q, ordering, now_text)
  local row = {}
  row[JOB.ordering] = ordering
  return A.too_costly(q, A.group_of(row, now_text))
end

G.export('flow_reserve', {}, function(q, r)
  local rows, now_text, taken = {}, G.int(G.now(q)), false
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
  for i = 1, r.count do rows[i] = {} end
  local ids = A.issue_ids(q, rows) or {}
  for i = #ids + 1, r.count do ids[i] = A.next_free_id(q) end
  return G.replies.flow_reserve({ ids = ids, taken = false, costly = 0 })
end)
