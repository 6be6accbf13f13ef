-- glidemq_completeChild   KEYS 1 parent deps, 2 parent job, 3 parent stream, 4 parent events
--   ARGV 1 deps member, 2 parent id   -> children still open (may be <= 0); repeating it changes nothing
-- glidemq_registerParent  KEYS 1 child job, 2 child parents set, 3 parent deps, 4 parent job, 5 parent stream,
--   6 parent events   ARGV 1 child id, 2 parent id, 3 parent P, 4 deps member
--   -> 'ok' | 'already_completed' | 'error:child_not_found'
local W = G.W

local function open_children(deps, job)
  return redis.call('SCARD', deps) - G.count_of(redis.call('HGET', job, 'depsCompleted'))
end

-- PNOTIFY: a child has completed. Counted once a child; a parent that is gone is not brought back as a ghost.
W.notify_parent = function(parent, member)
  local h = W.pick(parent.job, 'state', 'name')
  if not h.state or redis.call('HSETNX', parent.job, 'depdone:' .. member, '1') == 0 then return end
  redis.call('HINCRBY', parent.job, 'depsCompleted', 1)
  if h.state ~= 'waiting-children' or open_children(parent.deps, parent.job) > 0 then return end
  local entry = redis.call('XADD', parent.stream, '*', 'jobId', parent.id, 'name', h.name or '')
  redis.call('HSET', parent.job, 'state', 'waiting', 'eid', entry)
  G.emit(parent.events, 'active', parent.id)
end

local function parent_in(P, id)
  return { id = id, job = P .. 'job:' .. id, deps = P .. 'deps:' .. id, stream = P .. 'stream', events = P .. 'events' }
end

-- Whether keys of another queue may be touched from here: a cluster refuses those of other slots (W45).
local function reachable(parent)
  local probe = redis.pcall('EXISTS', parent.job)
  return type(probe) == 'number'
end

-- DAGNOTIFY: all parents of a child with several. Their members are split at the last colon.
W.notify_dag = function(q, id)
  for _, member in ipairs(redis.call('SMEMBERS', q.P .. 'parents:' .. id)) do
    local P, parent_id = string.match(member, '^(.*:)([^:]*)$')
    if P then
      local parent = parent_in(P, parent_id)
      if P == q.P or reachable(parent) then W.notify_parent(parent, q.P .. id) end
    end
  end
end

G.export('completeChild', { 'allow-oom' }, function(keys, args)
  W.notify_parent({ id = args[2], deps = keys[1], job = keys[2], stream = keys[3], events = keys[4] }, args[1])
  return open_children(keys[1], keys[2])
end)

G.export('registerParent', {}, function(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then return 'error:child_not_found' end
  redis.call('SADD', keys[2], args[3] .. ':' .. args[2])
  redis.call('SADD', keys[3], args[4])
  if state ~= 'completed' then return 'ok' end
  W.notify_parent({ id = args[2], deps = keys[3], job = keys[4], stream = keys[5], events = keys[6] }, args[4])
  return 'already_completed'
end)
