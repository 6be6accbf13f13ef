-- Manage the slots of an ordering group: who holds one, and what happens when a job leaves, returns or is suspended.
local M = G.groups

local RETAINING = { waiting = true, delayed = true, prioritized = true, suspended = true, ['waiting-children'] = true }

-- Return whether the job holds a slot of its group, by its field `slot`. If the field is absent (the job was activated
-- by another library), the protocol's rule applies: active jobs do, and jobs whose sequence has already had its turn.
M.holds_slot = function(g, h)
  if h.slot then return h.slot == '1' end
  if h.state == 'active' then return true end
  local seq = G.count_of(h.orderingSeq)
  return seq > 0 and seq < g.nextSeq and RETAINING[h.state] or false
end

M.free_slot = function(q, g, id, gone)
  if g.active > 0 then M.set_counters(g, g.active - 1, g.nextSeq) end
  if not gone then G.set(q, id, 'slot', '0') end
end

-- Remove a job from its group: its slot, or the turn it never took, is freed for the next. gone: the job's hash is
-- about to be deleted. Return the group, or nil for a job without one.
M.leave = function(q, id, h, gone)
  local name = G.given(h.groupKey)
  if not name then return nil end
  local g = M.group(q, name)
  if M.holds_slot(g, h) then
    M.free_slot(q, g, id, gone)
  else
    M.mark_skip(g, G.count_of(h.orderingSeq))
  end
  if h.state == 'group-waiting' then redis.call('ZREM', g.queue, id) end
  return g
end

-- The same, and start the next job: in the current exchange, whose worker may have a free slot, else through the
-- stream. (An entry pushed by an exchange that has already read the stream would wait for the next one, and wake up no
-- worker.) now = 0: limits are not checked.
M.leave_group = function(q, id, h, now, gone)
  local g = M.leave(q, id, h, gone)
  if not g then return end
  local fetching = rawget(q, 'fetching')
  if fetching then G.add_ready_group(fetching, g.name) else M.promote_parked(q, g, now) end
end

-- Write the slot of a job that holds one by the protocol's rule, before its state changes.
M.keep_slot = function(q, id, h)
  if h.slot == '1' then return end
  G.set(q, id, 'slot', '1')
  h.slot = '1'
end

-- Return a job whose attempt is void to the head of its group. It keeps its slot, since the next job must not start
-- before it (a job without a sequence frees it). Return the group.
M.return_to_head = function(q, id, h)
  local g = M.group(q, h.groupKey)
  if M.holds_slot(g, h) then
    if G.count_of(h.orderingSeq) > 0 then M.keep_slot(q, id, h) else M.free_slot(q, g, id) end
  end
  M.park(q, g, id, h)
  return g
end

-- Ordered jobs keep their slot while they are not active (retry, delay, children, suspension); others free it.
M.free_slot_unless_ordered = function(q, id, h, now)
  if G.count_of(h.orderingSeq) == 0 then M.leave_group(q, id, h, now) end
end
