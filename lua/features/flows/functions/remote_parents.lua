-- Notify parents in other slots of a cluster of children that a Node worker ended without notifying them. A child of
-- such a parent is in `remote-parents` from its add until its parents are notified. `remote-children` of the parent's
-- queue names the queues to check, for there may be no worker of ours at the child's queue.
-- notify_remote_parents: KEYS 1 meta (of the children)   ARGV 1 packed {cursor, pause ms}
--   -> packed {notified, cursor ('' = the end), left}   notified: entries added to the outbox for children that had
--   ended
--   left: children still recorded. A round that begins within the pause of another one reads nothing.
-- remote_children: KEYS 1 meta (of the parents)   ARGV 1 packed prefixes of queues without such children
--   -> packed prefixes of the queues to check
-- Bound: a page of about 100 children, 1,000 of their parents (the others in the next round); 100 queues.
local F = G.flows

local PAGE, PARENTS, QUEUES = 100, 1000, 100
local KEPT_MS = 600000 -- the children of a flow are added after their parents

-- Return how many parents were notified, and those that are left.
local function notify(q, id, parents, how, text, policy, room)
  local members, n, left = G.json(parents), 0, {}
  for i = room + 1, #members do left[#left + 1] = members[i] end
  for i = 1, math.min(room, #members) do
    local parent = F.parent_of(tostring(members[i]))
    if parent and string.find(parent.P, '{', 1, true) then
      F.notify_by_outbox(q, G.first(F.with_generations(q, id, { parent })), q.P .. id, how, text, policy)
      n = n + 1
    end
  end
  return n, left
end

-- Notify the parents of the job if it has ended, `room` at most. Return how many are notified.
local function check_child(q, id, parents, room)
  local how, text, policy = F.outcome(q, id)
  if not how then return 0 end
  local n, left = notify(q, id, parents, how, text, policy, room)
  if #left == 0 then
    redis.call('HDEL', q.remote_parents, id)
  else
    redis.call('HSET', q.remote_parents, id, cjson.encode(left))
  end
  return n
end

G.export('notify_remote_parents', { 'allow-oom' }, function(q, r)
  local cursor, notified = r.cursor, 0
  if redis.call('EXISTS', q.remote_parents) == 0 then
    return { notified = 0, cursor = '', left = 0 }
  end
  if cursor == '' and not redis.call('SET', q.lock_remote, '1', 'NX', 'PX', r.pause) then
    return { notified = 0, cursor = '', left = redis.call('HLEN', q.remote_parents) }
  end
  local found, after = G.scan('HSCAN', q.remote_parents, cursor, PAGE)
  for i = 1, #found, 2 do
    if notified < PARENTS then notified = notified + check_child(q, found[i], found[i + 1], PARENTS - notified) end
  end
  return {
    notified = notified, cursor = after,
    left = redis.call('HLEN', q.remote_parents),
  }
end)

G.export('remote_children', { 'allow-oom' }, function(q, r)
  local now = 0
  if redis.call('EXISTS', q.remote_children) == 0 then return {} end
  for _, P in ipairs(r.empty) do
    now = now > 0 and now or G.now(q)
    local at = redis.call('ZSCORE', q.remote_children, P)
    if at and (G.past_time(at, now) or 0) < now - KEPT_MS then redis.call('ZREM', q.remote_children, P) end
  end
  return redis.call('ZRANDMEMBER', q.remote_children, QUEUES)
end)
