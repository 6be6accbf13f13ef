-- Delete a job in any state, with all its keys and its place in stream, set or list. Used by `remove` and by
-- deduplication.

-- Count an active job without an entry as left. Jobs fetched by this library or by the wire library are in the set, for
-- every source (a parked job of a group is in no list). For jobs fetched by an older library of a peer, the record is
-- used.
local function leave_lists(q, id, by_record)
  if by_record or G.is_list_job(q, id) then G.untrack_list_job(q, id) end
end

-- The job's record must exist. reason: why, for its parents.
G.remove_job = function(q, id, reason, quiet)
  local key = q.J .. id
  local h = G.pick(key, 'state', 'eid', 'lifo', 'priority', 'timestamp', 'rank', 'rankedAs', 'fairKey')
  if h.state == 'waiting-children' or h.state == 'failed' then G.return_dedup_id(q, id) end
  if h.state == 'waiting' then
    local place = G.waiting_place(q, id, h)
    if place then G.leave_waiting(q, id, place) end
  elseif h.state == 'active' then
    local entry = G.find_entry(q, id, h.eid, h.timestamp)
    if entry then G.ack_entries(q, { entry }) else leave_lists(q, id, h.lifo == '1' or G.count_of(h.priority) > 0) end
  end
  G.leave_scheduled(q, id, h)
  G.results.left(q, redis.call('ZREM', q.completed, id) + redis.call('ZREM', q.failed, id))
  redis.call('ZREM', q.suspended, id)
  redis.call('ZREM', q.waiting_children, id)
  redis.call('ZREM', q.list_heartbeats, id)
  redis.call('HDEL', q.stall_watch, id)
  local job = G.pick(key, 'state', 'groupKey', 'orderingSeq', 'slot')
  if job.groupKey and not G.TERMINAL[job.state] then G.groups.leave_group(q, id, job, G.now(q), true) end
  -- A job that a peer failed has not notified its parents.
  if job.state ~= 'completed' then G.flows.child_ended(q, id, G.flows.REMOVED, reason, G.now(q)) end
  G.purge(q, { id })
  G.budgets.delete(q, { id })
  if not quiet then G.emit(q.events, 'removed', id) end
end
