-- Who holds a slot of an ordering group, and what becomes of it when a job leaves, comes back or pauses.
local M = G.groups

local RETAINING = { waiting = true, delayed = true, prioritized = true, suspended = true, ['waiting-children'] = true }

-- Whether the job holds a slot of its group. `slot` says so; where it is absent (activated by another library) the
-- rule of the protocol: active jobs do, and jobs whose sequence has already had its turn.
M.holds_slot = function(g, h)
  if h.slot then return h.slot == '1' end
  if h.state == 'active' then return true end
  local seq = G.count_of(h.orderingSeq)
  return seq > 0 and seq < g.nextSeq and RETAINING[h.state] or false
end

M.free_slot = function(q, g, id, gone)
  if g.active > 0 then M.move(g, g.active - 1, g.nextSeq) end
  if not gone then redis.call('HSET', q.J .. id, 'slot', '0') end
end

-- A job leaves its group for good: its slot, or the turn it never took, is free for the next (RELEASE, W1, W8, W92).
-- gone: the job's hash is about to be deleted. Returns the group, or nil for a job that has none.
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

-- The same, and the next one goes on: by the exchange that is under way, whose worker may have room, else by the stream.
-- (What an exchange pushes there when it has read the stream waits for the next one, and wakes nobody.)
-- now = 0: limits are not looked at.
M.leave_group = function(q, id, h, now, gone)
  local g = M.leave(q, id, h, gone)
  if not g then return end
  local fetching = rawget(q, 'fetching')
  if fetching then G.group_may_go_on(fetching, g.name) else M.kick(q, g, now) end
end

-- A job that holds a slot by the old rule is written down as one that does, before its state says otherwise.
M.keep_slot = function(q, id, h)
  if h.slot == '1' then return end
  redis.call('HSET', q.J .. id, 'slot', '1')
  h.slot = '1'
end

-- A job whose attempt is void goes back to the head of its group. Its slot it keeps: the next one must not begin
-- before it (an unordered one gives it back). Returns the group.
M.come_back = function(q, id, h)
  local g = M.group(q, h.groupKey)
  if M.holds_slot(g, h) then
    if G.count_of(h.orderingSeq) > 0 then M.keep_slot(q, id, h) else M.free_slot(q, g, id) end
  end
  M.park(q, g, id, h)
  return g
end

-- Ordered jobs keep their slot while they pause (retry, delay, children, suspension); others give it back.
M.pause_in_group = function(q, id, h, now)
  if G.count_of(h.orderingSeq) == 0 then M.leave_group(q, id, h, now) end
end
