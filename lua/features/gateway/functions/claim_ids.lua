-- claim_ids: change entries of the index of job ids that the clients of gateways have chosen; it belongs to no queue.
-- KEYS 1 hash: id -> `<queue>|<epoch seconds of the claim>`
-- ARGV 1 packed flat list of id, expected and new value: an entry gets its new value ('' = none) if it has the expected
--   one ('' = it does not exist)   -> packed list of the values before; where it is the expected one, it was changed
-- Bound: the given ids, at most 1,000.

local IDS_MAX = 1000

G.export('claim_ids', { 'allow-oom' }, function(key, r)
  local claims, found = r.claims, {}
  if #claims > 3 * IDS_MAX then error('too many ids: ' .. #claims / 3) end
  for i = 1, #claims, 3 do
    local id, expected, value = claims[i], claims[i + 1], claims[i + 2]
    local before = redis.call('HGET', key, id) or ''
    found[#found + 1] = before
    if before == expected and value == '' then
      redis.call('HDEL', key, id)
    elseif before == expected then
      redis.call('HSET', key, id, value)
    end
  end
  return found
end)
