-- broadcast_subscribe: create a subscription if it does not exist.
--   KEYS 1 meta   ARGV 1 packed {group, start}   -> the entry id after which a new subscription begins
-- broadcast_subscriptions: return the progress of each subscription.   KEYS 1 meta
--   -> packed rows {name, lag or -1, pending, released, last delivered id, consumers}
-- broadcast_unsubscribe: delete a subscription.   KEYS 1 meta   ARGV 1 packed {group, force}   -> 'ok' | 'gone' |
-- 'active'
-- broadcast_delivery: return the state of a message in a subscription.   KEYS 1 meta   ARGV 1 packed {id, group}
--   -> packed {message exists 0|1, flat record, place}   place: 'pending', 'read', 'unread' or '' (unknown)
-- Bound: a page of 1,000 entries per subscription if the server does not report its lag.
local S = G.subscriptions

local COUNTED = 1000

G.export('broadcast_subscribe', { 'allow-oom' }, function(keys, args)
  local r = cmsgpack.unpack(args[1])
  return S.create(G.queue(keys[1]), r[1], r[2])
end)

local function map_of(flat)
  local map = {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

-- The server does not report the lag of a group after entries before its end were deleted.
local function lag_of(q, info)
  local lag = info.lag
  if lag then return lag end
  local left = #redis.call('XRANGE', q.stream, '(' .. info['last-delivered-id'], '+', 'COUNT', COUNTED + 1)
  return left <= COUNTED and left or -1
end

local function handed_back(q, group)
  for _, c in ipairs(redis.pcall('XINFO', 'CONSUMERS', q.stream, group)) do
    if c[2] == S.HANDED_BACK then return c[4] end
  end
  return 0
end

G.export('broadcast_subscriptions', { 'no-writes' }, function(keys)
  local q, rows = G.queue(keys[1]), {}
  for _, flat in ipairs(redis.pcall('XINFO', 'GROUPS', q.stream)) do
    local info = map_of(flat)
    if not S.INTERNAL[info.name] then
      rows[#rows + 1] = { info.name, lag_of(q, info), info.pending, handed_back(q, info.name), info['last-delivered-id'],
        info.consumers }
    end
  end
  return cmsgpack.pack(rows)
end)

G.export('broadcast_unsubscribe', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local group = r[1]
  if S.INTERNAL[group] then return 'gone' end
  local consumers = redis.pcall('XINFO', 'CONSUMERS', q.stream, group)
  if consumers.err then return 'gone' end
  for _, c in ipairs(consumers) do
    if not r[2] and redis.call('EXISTS', q.P .. 'w:' .. c[2]) == 1 then return 'active' end
  end
  redis.call('XGROUP', 'DESTROY', q.stream, group)
  G.delete_dead_letter_setting(q, group)
  return 'ok'
end)

-- Return whether entry id `a` is before or equal to `b`.
local function not_after(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am < bm or (am == bm and as <= bs)
end

S.place_of = function(q, id, group)
  local h = redis.call('HMGET', q.J .. id, 'eid', 'timestamp')
  local entry = G.find_entry(q, id, h[1] or nil, h[2] or nil)
  if not entry then return '' end
  if S.holder(q, group, entry) then return 'pending' end
  for _, flat in ipairs(redis.pcall('XINFO', 'GROUPS', q.stream)) do
    local info = map_of(flat)
    if info.name == group then return not_after(entry, info['last-delivered-id']) and 'read' or 'unread' end
  end
  return ''
end

G.export('broadcast_delivery', { 'no-writes' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local exists = redis.call('EXISTS', q.J .. r[1])
  local record = redis.call('HGETALL', S.record_key(q, r[1], r[2]))
  return cmsgpack.pack({ exists, record, exists == 1 and S.place_of(q, r[1], r[2]) or '' })
end)
