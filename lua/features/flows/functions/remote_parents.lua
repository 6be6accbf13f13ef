-- Flows over several slots of a cluster beside Node workers (W44, W45): what one of these ends tells no parent elsewhere.
-- A child of such a parent stands in `remote-parents` from its add until its end has been told; `remote-children` of the
-- parent's queue names the queues to look at, for there may be no worker of ours where the child is.
-- tell_remote_parents: KEYS 1 meta (of the children)   ARGV 1 packed {cursor, pause ms}
--   -> packed {told, cursor ('' = the end), left}   told: entries that the outbox has got for ends that nobody had told
--   left: children that are remembered. A round that begins within the pause of another one looks at nothing.
-- remote_children: KEYS 1 meta (of the parents)   ARGV 1 packed prefixes of queues that hold no such child any more
--   -> packed prefixes of the queues to look at
-- Bound: a page of about 100 children; 100 queues.
local F = G.flows

local PAGE, QUEUES = 100, 100
local KEPT_MS = 600000 -- the children of a flow are added after their parents

local function tell(q, id, parents, how, text, policy)
  local ok, members = pcall(cjson.decode, parents)
  if not ok or type(members) ~= 'table' then return 0 end
  local n = 0
  for _, member in ipairs(members) do
    local P, parent = string.match(tostring(member), '^(.*:)([^:]*)$')
    if P and string.find(P, '{', 1, true) then
      F.tell_by_outbox(q, P, parent, q.P .. id, how, text, policy)
      n = n + 1
    end
  end
  return n
end

-- How many parents are told of the job's end; nil while it has not ended.
local function look_at(q, id, parents)
  local ended = F.fate(q, id)
  return ended and tell(q, id, parents, ended[1], ended[2], ended[3]) or nil
end

G.export('tell_remote_parents', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local cursor, told = r[1], 0
  if redis.call('EXISTS', q.remote_parents) == 0 then return cmsgpack.pack({ 0, '', 0 }) end
  if cursor == '' and not redis.call('SET', q.P .. 'lock:remote', '1', 'NX', 'PX', r[2]) then
    return cmsgpack.pack({ 0, '', redis.call('HLEN', q.remote_parents) })
  end
  local page = redis.call('HSCAN', q.remote_parents, cursor == '' and '0' or cursor, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    local n = look_at(q, page[2][i], page[2][i + 1])
    if n then
      told = told + n
      redis.call('HDEL', q.remote_parents, page[2][i])
    end
  end
  return cmsgpack.pack({ told, page[1] ~= '0' and page[1] or '', redis.call('HLEN', q.remote_parents) })
end)

G.export('remote_children', { 'allow-oom' }, function(keys, args)
  local q, now = G.queue(keys[1]), 0
  if redis.call('EXISTS', q.remote_children) == 0 then return cmsgpack.pack({}) end
  for _, P in ipairs(cmsgpack.unpack(args[1])) do
    now = now > 0 and now or G.now(q)
    local at = redis.call('ZSCORE', q.remote_children, P)
    if at and (G.past_time(at, now) or 0) < now - KEPT_MS then redis.call('ZREM', q.remote_children, P) end
  end
  return cmsgpack.pack(redis.call('ZRANDMEMBER', q.remote_children, QUEUES))
end)
