-- flow_reserve: reserve ids for the jobs of a flow that takes several calls to add.
-- KEYS 1 meta   ARGV 1 packed {count, custom ids, orderings}   -> packed {ids, existing custom id or false, too costly}
--   too costly: the number of the ordering (as in `add`) whose bucket holds less than it costs, or 0
-- Bound: the ids and orderings given.
local A = G.adding

local ORDERING = 11

A.too_costly_ordering = function(q, ordering, now_text)
  local row = {}
  row[ORDERING] = ordering
  return A.too_costly(q, A.group_of(row, now_text))
end

G.export('flow_reserve', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows, now_text, taken = {}, G.int(G.now(q)), false
  for _, id in ipairs(r[2]) do
    if redis.call('EXISTS', q.J .. id) == 1 then taken = id end
  end
  for i, ordering in ipairs(r[3]) do
    if A.too_costly_ordering(q, ordering, now_text) then return cmsgpack.pack({ {}, taken, i }) end
  end
  if taken then return cmsgpack.pack({ {}, taken, 0 }) end
  for _, id in ipairs(r[2]) do G.advance_counter(q, id) end
  for i = 1, r[1] do rows[i] = {} end
  local ids = A.issue_ids(q, rows) or {}
  for i = #ids + 1, r[1] do ids[i] = A.next_free_id(q) end
  return cmsgpack.pack({ ids, false, 0 })
end)
