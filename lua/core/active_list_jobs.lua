-- Track active jobs that were fetched from a list or the scheduled set: they have no stream entry, so nothing is
-- pending for them. `list-active` counts them (Node peers read it). `list-active-ids` holds their ids by last
-- heartbeat. Both describe jobs that already run: a foreign key in their place must not undo that.

G.track_list_jobs = function(q, ids, now_text)
  local n = #ids
  if n == 0 then return end
  G.pcall('INCRBY', q.list_active, n)
  local add = {}
  for i = 1, n do
    add[2 * i - 1] = now_text
    add[2 * i] = ids[i]
  end
  G.add_members(G.pcall, q.list_active_ids, add)
end

-- The counter never goes below zero.
G.untrack_list_jobs = function(q, ids)
  if #ids == 0 then return end
  G.pcall('ZREM', q.list_active_ids, unpack(ids))
  local active = G.pcall('GET', q.list_active)
  local left = type(active) == 'string' and math.min(#ids, G.count_of(active)) or 0
  if left > 0 then G.pcall('INCRBY', q.list_active, -left) end
  G.fair.leave_active(q, ids)
end

G.untrack_list_job = function(q, id) G.untrack_list_jobs(q, { id }) end
