-- glidemq_completeChild: report a completed child to its parent.
-- KEYS 1 parent deps, 2 parent job, 3 parent stream, 4 parent events   ARGV 1 deps member, 2 parent id
--   -> children still open (may be <= 0); idempotent
-- glidemq_registerParent: add a parent to an existing child.
-- KEYS 1 child job, 2 child parents set, 3 parent deps, 4 parent job, 5 parent stream, 6 parent events
--   ARGV 1 child id, 2 parent id, 3 parent P, 4 deps member   -> 'ok' | 'already_completed' | 'error:child_not_found'
-- Bound: the parents of the child.
local W = G.W

local F = G.flows

-- Report a completed child, counted once per child. A deleted parent is not recreated as a ghost.
W.notify_parent = function(stream, id, member, value, now, generation)
  local q = W.queue(stream, 'stream')
  F.record_child_end(q, { id = id, generation = generation }, member, F.COMPLETED, value, nil, now or G.now(q))
end

-- Notify a parent in another queue: directly if this server holds both queues. In a cluster a worker of glidemq_py
-- delivers it, if the child's queue has one; else a worker of the parent's queue
-- (features/flows/functions/remote_parents.lua).
F.notify_other_queue = function(q, parent, member, how, text, policy, now)
  local here = type(redis.pcall('EXISTS', parent.P .. 'job:' .. parent.id)) == 'number'
  if here and not G.unknown_feature({ parent.P .. 'meta' }) then
    if F.may_notify(q) then
      F.record_child_end(F.reached(q, parent.P), parent, member, how, text, policy, now, true)
    else
      F.notify_one_later(q, string.sub(member, #q.P + 1), parent, how, text, policy)
    end
    return true
  end
  return redis.call('EXISTS', q.workers) == 1 and F.notify_by_outbox(q, parent, member, how, text, policy)
end

-- Notify all parents of a child with several.
W.notify_dag = function(q, id, value, now)
  if redis.call('EXISTS', q.P .. 'parents:' .. id, q.P .. 'parents-left:' .. id) == 0 then return end
  F.child_ended(q, id, F.COMPLETED, value, now, { parentIds = '' })
end

G.export('completeChild', { 'allow-oom' }, function(keys, args)
  W.notify_parent(keys[3], args[2], args[1])
  return redis.call('SCARD', keys[1]) - G.count_of(redis.call('HGET', keys[2], 'depsCompleted'))
end)

G.export('registerParent', {}, function(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then return 'error:child_not_found' end
  redis.call('SADD', keys[2], args[3] .. ':' .. args[2])
  redis.call('SADD', keys[3], args[4])
  -- Clients write this field into the child's record themselves; if one does not, its parents are notified anyway.
  redis.call('HSETNX', keys[1], 'parentIds', cjson.encode({ args[2] }))
  if state ~= 'completed' then return 'ok' end
  W.notify_parent(keys[5], args[2], args[4], redis.call('HGET', keys[1], 'returnvalue') or nil)
  return 'already_completed'
end)
