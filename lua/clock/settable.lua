-- The clock of test renderings: the key `P:clock` where a test has set it (epoch ms), else the server's own.
G.now = function(q)
  local set = redis.call('GET', q.P .. 'clock')
  if set then return tonumber(set) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
